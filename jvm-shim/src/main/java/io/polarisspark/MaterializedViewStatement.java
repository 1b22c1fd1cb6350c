package io.polarisspark;

import io.polarisspark.SqlTokens.Kind;
import io.polarisspark.SqlTokens.Token;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.parser.ParseException;
import org.apache.spark.sql.catalyst.parser.ParserInterface;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.catalog.CatalogManager;
import org.apache.spark.sql.connector.catalog.CatalogPlugin;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.internal.VariableSubstitution;
import org.apache.spark.unsafe.types.UTF8String;
import scala.jdk.javaapi.CollectionConverters;

/**
 * A statement that may be one of materialized views.
 *
 * <p>Each method that reads a statement returns null if the view is not in a {@link PolarisCatalog}. Syntax errors are
 * reported only for views in such a catalog, and for statements without a readable name if it is the current catalog.
 */
final class MaterializedViewStatement {
  private static final Pattern PLAIN = Pattern.compile("[A-Za-z_][A-Za-z0-9_]*");

  private final SparkSession session;
  private final ParserInterface parser;
  private final SqlTokens tokens;

  /** A catalog and a name in it. */
  private record Target(String catalog, List<String> name) {
    String text() {
      return name.stream()
          .map(part -> PLAIN.matcher(part).matches() ? part : quoted(part))
          .collect(Collectors.joining("."));
    }
  }

  /** A call of a procedure of a catalog. */
  private static final class Call {
    private final String procedure;
    private final List<String> arguments = new ArrayList<>();

    Call(String catalog, String procedure) {
      this.procedure = quoted(catalog) + ".system." + procedure;
    }

    Call with(String argument, String expression) {
      if (expression != null) {
        arguments.add(argument + " => " + expression);
      }
      return this;
    }

    Call with(String argument, boolean value) {
      return with(argument, Boolean.toString(value));
    }

    String text() {
      return "CALL " + procedure + "(" + String.join(", ", arguments) + ")";
    }
  }

  MaterializedViewStatement(SparkSession session, ParserInterface parser, String text) {
    this.session = session;
    this.parser = parser;
    // As Spark's parser does. Literals in the result escape what it would substitute again.
    this.tokens =
        new SqlTokens(text.contains("${") ? new VariableSubstitution().substitute(text) : text);
  }

  String rewrite() throws ParseException {
    Token middle = tokens.peek(1);
    Token view = tokens.peek(2);
    if (tokens.accept("CREATE", "OR", "REPLACE", "MATERIALIZED", "VIEW")) {
      return create(true);
    }
    if (tokens.accept("CREATE", "MATERIALIZED", "VIEW")) {
      return create(false);
    }
    if (tokens.accept("REFRESH", "MATERIALIZED", "VIEW")) {
      return refresh();
    }
    if (tokens.accept("DROP", "MATERIALIZED", "VIEW")) {
      return drop();
    }
    if (tokens.accept("SHOW", "MATERIALIZED", "VIEWS")) {
      return show();
    }
    if (tokens.accept("ALTER", "MATERIALIZED", "VIEW")) {
      return alter(middle, view);
    }
    if (tokens.accept("DESCRIBE", "MATERIALIZED", "VIEW")
        || tokens.accept("DESC", "MATERIALIZED", "VIEW")) {
      return describe();
    }
    if (tokens.accept("EXPLAIN", "REFRESH", "MATERIALIZED", "VIEW")) {
      return explainRefresh();
    }
    return null;
  }

  private String create(boolean orReplace) throws ParseException {
    Token condition = tokens.peek();
    boolean ifNotExists = tokens.accept("IF", "NOT", "EXISTS");
    Target view = view();
    if (view == null) {
      return null;
    }
    if (orReplace && ifNotExists) {
      throw tokens.error(condition, "OR REPLACE and IF NOT EXISTS exclude each other");
    }
    List<String> columns = null;
    Map<String, String> comments = new LinkedHashMap<>();
    if (tokens.accept("(")) {
      columns = columns(comments);
    }
    List<String> transforms = null;
    String comment = null;
    Map<String, String> properties = null;
    while (!tokens.accept("AS")) {
      Token clause = tokens.peek();
      boolean repeated;
      if (tokens.accept("PARTITIONED", "BY")) {
        repeated = transforms != null;
        transforms = transforms();
      } else if (tokens.accept("COMMENT")) {
        repeated = comment != null;
        comment = string("the comment as a string");
      } else if (tokens.accept("TBLPROPERTIES")) {
        repeated = properties != null;
        properties = properties();
      } else {
        String first = columns == null ? "a list of columns in parentheses, " : "";
        boolean isFirst = transforms == null && comment == null && properties == null;
        throw tokens.error(
            clause,
            "expected " + (isFirst ? first : "") + "PARTITIONED BY, COMMENT, TBLPROPERTIES or AS");
      }
      if (repeated) {
        throw tokens.error(clause, "the statement already has this clause");
      }
    }
    return new Call(view.catalog, "create_materialized_view")
        .with("view", literal(view.text()))
        .with("query", literal(query()))
        .with("or_replace", orReplace)
        .with("if_not_exists", ifNotExists)
        .with("columns", array(columns))
        .with("comments", comments.isEmpty() ? null : map(comments))
        .with("partitioned_by", array(transforms))
        .with("comment", comment == null ? null : literal(comment))
        .with("properties", map(properties))
        .text();
  }

  private String refresh() throws ParseException {
    Target view = view();
    if (view == null) {
      return null;
    }
    boolean full = tokens.accept("FULL");
    tokens.expectEnd(full ? "the end of the statement" : "FULL or the end of the statement");
    return new Call(view.catalog, "refresh")
        .with("view", literal(view.text()))
        .with("full", full)
        .text();
  }

  private String drop() throws ParseException {
    boolean ifExists = tokens.accept("IF", "EXISTS");
    Target view = view();
    if (view == null) {
      return null;
    }
    boolean purge = tokens.accept("PURGE");
    tokens.expectEnd(purge ? "the end of the statement" : "PURGE or the end of the statement");
    return new Call(view.catalog, "drop_materialized_view")
        .with("view", literal(view.text()))
        .with("if_exists", ifExists)
        .with("purge", purge ? "true" : null)
        .text();
  }

  /** Without a namespace (all of a catalog, or no current namespace), the procedure's argument is left out. */
  private String show() throws ParseException {
    Target namespace;
    String expected = "the end of the statement";
    if (tokens.accept("IN") || tokens.accept("FROM")) {
      List<String> parts = parts("the name of a namespace");
      namespace = parts == null ? null : target(parts, 1);
    } else {
      namespace = target(List.of(currentNamespace()), 1);
      expected = "IN, FROM or the end of the statement";
    }
    if (namespace == null) {
      return null;
    }
    tokens.expectEnd(expected);
    return new Call(namespace.catalog, "show_materialized_views")
        .with("namespace", namespace.name.isEmpty() ? null : literal(namespace.text()))
        .text();
  }

  private String alter(Token materialized, Token keyword) throws ParseException {
    if (view() == null) {
      return null;
    }
    if (!tokens.accept("SET", "TBLPROPERTIES")
        && !tokens.accept("UNSET", "TBLPROPERTIES")
        && !tokens.accept("RENAME", "TO")) {
      throw tokens.error(
          tokens.peek(), "expected SET TBLPROPERTIES, UNSET TBLPROPERTIES or RENAME TO");
    }
    String text = tokens.text();
    return text.substring(0, materialized.start()) + text.substring(keyword.start());
  }

  private String describe() throws ParseException {
    Token next = tokens.peek();
    if (next.kind() == Kind.END || next.is(";") || next.is(".")) {
      return null; // Spark describes the column `view` of a table `materialized`.
    }
    if (next.is("EXTENDED") && tokens.peek(1).isIdentifier()) {
      tokens.take();
    }
    return ofView("describe_materialized_view");
  }

  private String explainRefresh() throws ParseException {
    return ofView("explain_refresh");
  }

  private String ofView(String procedure) throws ParseException {
    Target view = view();
    if (view == null) {
      return null;
    }
    tokens.expectEnd("the end of the statement");
    return new Call(view.catalog, procedure).with("view", literal(view.text())).text();
  }

  /** Reads the name of a view. */
  private Target view() throws ParseException {
    Token at = tokens.peek();
    List<String> parts = parts("the name of a materialized view");
    if (parts == null) {
      return null;
    }
    Target found = target(parts, 2);
    if (found == null || found.name.size() > 1) {
      return found;
    }
    if (parts.size() > 1) {
      throw tokens.error(
          at, "the name has a catalog but no namespace; write catalog.namespace.view");
    }
    List<String> name = Stream.concat(Arrays.stream(currentNamespace()), parts.stream()).toList();
    if (name.size() == 1) {
      throw tokens.error(
          at, "the name has no namespace, and the session has no current one; write namespace.view");
    }
    return new Target(found.catalog, name);
  }

  /** Reads a name. Returns null if it cannot be read and the current catalog is not a {@link PolarisCatalog}. */
  private List<String> parts(String expected) throws ParseException {
    Token first = tokens.peek();
    try {
      if (!first.isIdentifier()) {
        throw tokens.error(first, "expected " + expected);
      }
      Token last = tokens.take();
      // Spark's own error for a name with a hyphen tells to quote it.
      while (tokens.peek().is(".")
          || (tokens.peek().is("-") && tokens.peek().start() == last.end())) {
        last = tokens.take();
        if (tokens.peek().isIdentifier()) {
          last = tokens.take();
        }
      }
      return identifiers(first, last);
    } catch (ParseException unreadable) {
      if (catalogs().currentCatalog() instanceof PolarisCatalog) {
        throw unreadable;
      }
      return null;
    }
  }

  private List<String> identifiers(Token first, Token last) throws ParseException {
    String text = tokens.text().substring(first.start(), last.end());
    return CollectionConverters.asJava(parser.parseMultipartIdentifier(text));
  }

  /**
   * Returns the catalog of a name and the rest of the name, or null if it is not a {@link PolarisCatalog}.
   *
   * @param minimum the number of parts of a name that begins with a catalog
   */
  private Target target(List<String> parts, int minimum) {
    CatalogManager catalogs = catalogs();
    boolean hasCatalog = parts.size() >= minimum && catalogs.isCatalogRegistered(parts.get(0));
    CatalogPlugin catalog =
        hasCatalog ? catalogs.catalog(parts.get(0)) : catalogs.currentCatalog();
    return catalog instanceof PolarisCatalog
        ? new Target(catalog.name(), hasCatalog ? parts.subList(1, parts.size()) : parts)
        : null;
  }

  private CatalogManager catalogs() {
    return session.sessionState().catalogManager();
  }

  private String[] currentNamespace() {
    return catalogs().currentNamespace();
  }

  /** Reads a list of columns; adds their comments to the map. */
  private List<String> columns(Map<String, String> comments) throws ParseException {
    List<String> columns = new ArrayList<>();
    do {
      Token column = tokens.take();
      if (!column.isIdentifier()) {
        throw tokens.error(column, "expected the name of a column");
      }
      String name = identifiers(column, column).get(0);
      if (columns.contains(name)) {
        throw tokens.error(column, "the list already has this column");
      }
      columns.add(name);
      if (tokens.accept("COMMENT")) {
        comments.put(name, string("the column's comment as a string"));
      } else if (!tokens.peek().is(",") && !tokens.peek().is(")")) {
        throw tokens.error(tokens.peek(), "expected COMMENT, ',' or ')' after the name of a column");
      }
    } while (tokens.accept(","));
    tokens.expect(")", "',' or ')' after a column");
    return columns;
  }

  /** Reads a list of partition transforms, and returns them as they are written. */
  private List<String> transforms() throws ParseException {
    tokens.expect("(", "'(' after PARTITIONED BY");
    List<String> transforms = new ArrayList<>();
    do {
      int start = tokens.peek().start();
      int end = start;
      int depth = 0;
      while (depth > 0 || !(tokens.peek().is(",") || tokens.peek().is(")"))) {
        Token part = tokens.take();
        if (part.kind() == Kind.END || part.kind() == Kind.UNCLOSED) {
          throw tokens.error(part, "expected ')' after the partition transforms");
        }
        depth += part.is("(") ? 1 : part.is(")") ? -1 : 0;
        end = part.end();
      }
      if (start == end) {
        throw tokens.error(tokens.peek(), "expected a partition transform such as days(column)");
      }
      transforms.add(tokens.text().substring(start, end));
    } while (tokens.accept(","));
    tokens.take();
    return transforms;
  }

  private Map<String, String> properties() throws ParseException {
    tokens.expect("(", "'(' after TBLPROPERTIES");
    Map<String, String> properties = new LinkedHashMap<>();
    do {
      Token key = tokens.peek();
      String name = propertyKey();
      tokens.accept("=");
      if (properties.putIfAbsent(name, propertyValue()) != null) {
        throw tokens.error(key, "the list already has this property");
      }
    } while (tokens.accept(","));
    tokens.expect(")", "',' or ')' after a property");
    return properties;
  }

  private String propertyKey() throws ParseException {
    Token first = tokens.peek();
    if (first.kind() == Kind.STRING) {
      int count = strings();
      boolean hasValue = tokens.peek(count).is("=");
      return string(hasValue ? count : 1, "");
    }
    if (!first.isIdentifier()) {
      throw tokens.error(first, "expected the key of a property, as a string or as a name");
    }
    Token last = tokens.take();
    while (tokens.peek().is(".") && tokens.peek(1).isIdentifier()) {
      tokens.take();
      last = tokens.take();
    }
    return String.join(".", identifiers(first, last));
  }

  private String propertyValue() throws ParseException {
    Token value = tokens.peek();
    if (value.kind() == Kind.NUMBER) {
      return tokens.take().text();
    }
    if (value.is("TRUE") || value.is("FALSE")) {
      return tokens.take().text().toLowerCase(Locale.ROOT);
    }
    return string("the value of the property: a string, a number, true or false");
  }

  private String string(String expected) throws ParseException {
    return string(strings(), expected);
  }

  /** Returns the number of strings that follow. Spark concatenates adjacent strings. */
  private int strings() {
    int count = 0;
    while (tokens.peek(count).kind() == Kind.STRING) {
      count++;
    }
    return count;
  }

  /** Consumes adjacent strings, and returns the value that they have in the session. */
  private String string(int count, String expected) throws ParseException {
    Token first = tokens.peek();
    if (count > 0) {
      int end = tokens.peek(count - 1).end();
      var value = parser.parseExpression(tokens.text().substring(first.start(), end));
      // A double-quoted text may be an identifier (spark.sql.ansi.doubleQuotedIdentifiers).
      if (value instanceof Literal literal && literal.value() instanceof UTF8String string) {
        for (int i = 0; i < count; i++) {
          tokens.take();
        }
        return string.toString();
      }
    }
    throw tokens.error(first, "expected " + expected);
  }

  /** Reads the query, from its first to its last token, as Spark keeps the query of a view. */
  private String query() throws ParseException {
    Token first = tokens.peek();
    Token last = first;
    while (tokens.peek().kind() != Kind.END && !tokens.peek().is(";")) {
      last = tokens.take();
      if (last.kind() == Kind.UNCLOSED) {
        throw tokens.error(last, "");
      }
    }
    if (first.kind() == Kind.END || first.is(";")) {
      throw tokens.error(first, "expected a query after AS");
    }
    tokens.expectEnd("the end of the statement after ';'");
    String query = tokens.text().substring(first.start(), last.end());
    parser.parseQuery(query);
    try {
      // Iceberg's parser accepts any statement as a query. A subquery has to be one.
      parser.parseExpression("EXISTS (" + query + ")");
    } catch (ParseException other) {
      throw tokens.error(first, "expected a query after AS");
    }
    return query;
  }

  private static String quoted(String part) {
    return "`" + part.replace("`", "``") + "`";
  }

  private static String array(List<String> values) {
    return values == null
        ? null
        : values.stream()
            .map(MaterializedViewStatement::literal)
            .collect(Collectors.joining(", ", "array(", ")"));
  }

  private static String map(Map<String, String> values) {
    return values == null
        ? null
        : values.entrySet().stream()
            .flatMap(each -> Stream.of(each.getKey(), each.getValue()))
            .map(MaterializedViewStatement::literal)
            .collect(Collectors.joining(", ", "map(", ")"));
  }

  /** Returns an expression that Spark's parser reads as exactly this text in the active session. */
  static String literal(String text) {
    boolean isPlain = text.indexOf('\'') < 0 && text.indexOf('\\') < 0 && !text.contains("${");
    if (!isPlain && SQLConf.get().escapedStringLiterals()) {
      // Such literals have no escapes, so that no literal ends in a backslash or contains both kinds of quotes.
      byte[] bytes = text.getBytes(StandardCharsets.UTF_8);
      return "CAST(X'" + HexFormat.of().withUpperCase().formatHex(bytes) + "' AS STRING)";
    }
    // A backslash before any other character is dropped, and the text is no longer a reference to a variable.
    String escaped =
        isPlain ? text : text.replace("\\", "\\\\").replace("'", "\\'").replace("${", "$\\{");
    return "'" + escaped + "'";
  }
}
