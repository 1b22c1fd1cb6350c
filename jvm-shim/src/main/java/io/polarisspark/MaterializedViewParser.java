package io.polarisspark;

import org.apache.spark.sql.catalyst.FunctionIdentifier;
import org.apache.spark.sql.catalyst.TableIdentifier;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.parser.ParameterContext;
import org.apache.spark.sql.catalyst.parser.ParseException;
import org.apache.spark.sql.catalyst.parser.ParserInterface;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.execution.SparkSqlParser;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;
import scala.collection.immutable.Seq;

/**
 * Parses the statements of materialized views, and leaves all other statements to the parser that it wraps. A statement
 * whose view is in a {@link PolarisCatalog} is rewritten to a call of a procedure, or to {@code ALTER VIEW}.
 *
 * <p>This is not a {@code java.lang.reflect.Proxy}, because a proxy would wrap analysis errors that the other parser
 * throws without declaring them, and because Iceberg looks for its own parser in the fields of the session's parser.
 */
public final class MaterializedViewParser implements ParserInterface {
  private final SparkSession session;
  private final ParserInterface parser;

  MaterializedViewParser(SparkSession session, ParserInterface parser) {
    this.session = session;
    this.parser = parser;
  }

  /**
   * Rewrites a statement of materialized views.
   *
   * @param parser parses the names and strings in the statement
   * @return the other statement, or null if the statement is not one of materialized views in a {@link PolarisCatalog}
   */
  public static String rewrite(SparkSession session, ParserInterface parser, String statement)
      throws ParseException {
    return new MaterializedViewStatement(session, parser, statement).rewrite();
  }

  @Override
  public LogicalPlan parsePlan(String statement) throws ParseException {
    return parser.parsePlan(rewrittenOrSame(statement));
  }

  /** Spark 4.1 calls this method where Spark 4.0, whose parsers do not have it, calls {@link #parsePlan}. */
  @Override
  public LogicalPlan parsePlanWithParameters(String statement, ParameterContext parameters)
      throws ParseException {
    return parser.parsePlanWithParameters(rewrittenOrSame(statement), parameters);
  }

  private String rewrittenOrSame(String statement) throws ParseException {
    String rewritten = rewrite(session, parser, statement);
    return rewritten == null ? statement : rewritten;
  }

  @Override
  public LogicalPlan parseQuery(String query) throws ParseException {
    return parser.parseQuery(query);
  }

  @Override
  public Expression parseExpression(String expression) throws ParseException {
    return parser.parseExpression(expression);
  }

  @Override
  public TableIdentifier parseTableIdentifier(String name) throws ParseException {
    return parser.parseTableIdentifier(name);
  }

  @Override
  public FunctionIdentifier parseFunctionIdentifier(String name) throws ParseException {
    return parser.parseFunctionIdentifier(name);
  }

  @Override
  public Seq<String> parseMultipartIdentifier(String name) throws ParseException {
    return parser.parseMultipartIdentifier(name);
  }

  /** Iceberg's parser lacks this operation, which CREATE FUNCTION needs. */
  @Override
  public StructType parseRoutineParam(String parameters) throws ParseException {
    return new SparkSqlParser().parseRoutineParam(parameters);
  }

  @Override
  public StructType parseTableSchema(String schema) throws ParseException {
    return parser.parseTableSchema(schema);
  }

  @Override
  public DataType parseDataType(String type) throws ParseException {
    return parser.parseDataType(type);
  }
}
