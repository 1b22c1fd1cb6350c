package io.polarisspark;

import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import org.apache.spark.internal.config.ConfigEntry;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.internal.SQLConf$;
import scala.jdk.javaapi.CollectionConverters;

/**
 * The settings of a session on which the results of queries depend. A refresh of a materialized view records them.
 * Its rows are read only in sessions with the same settings.
 */
public final class SessionSettings {
  /** Settings that are recorded whatever their values are. */
  private static final List<String> ALWAYS = List.of("spark.sql.session.timeZone", "spark.sql.ansi.enabled");

  /** Settings that are recorded if their values differ from Spark's defaults. */
  private static final Set<String> OTHERS =
      Set.of(
          "spark.sql.analyzer.preferColumnOverLcaInArrayIndex",
          "spark.sql.ansi.doubleQuotedIdentifiers",
          "spark.sql.ansi.enforceReservedKeywords",
          "spark.sql.ansi.relationPrecedence",
          "spark.sql.caseSensitive",
          "spark.sql.charAsVarchar",
          "spark.sql.chunkBase64String.enabled",
          "spark.sql.columnNameOfCorruptRecord",
          "spark.sql.decimalOperations.allowPrecisionLoss",
          "spark.sql.function.concatBinaryAsString",
          "spark.sql.function.eltOutputAsString",
          "spark.sql.groupByAliases",
          "spark.sql.groupByOrdinal",
          "spark.sql.icu.caseMappings.enabled",
          "spark.sql.json.enableExactStringParsing",
          "spark.sql.json.enablePartialResults",
          "spark.sql.jsonGenerator.ignoreNullFields",
          "spark.sql.lateralColumnAlias.enableImplicitResolution",
          "spark.sql.mapKeyDedupPolicy",
          "spark.sql.optimizer.decorrelateExistsSubqueryLegacyIncorrectCountHandling.enabled",
          "spark.sql.optimizer.decorrelateSubqueryLegacyIncorrectCountHandling.enabled",
          "spark.sql.orderByOrdinal",
          "spark.sql.parser.escapedStringLiterals",
          "spark.sql.parser.quotedRegexColumnNames",
          "spark.sql.preserveCharVarcharTypeInfo",
          "spark.sql.readSideCharPadding",
          "spark.sql.storeAssignmentPolicy",
          "spark.sql.timestampType",
          "spark.sql.variable.substitute",
          "spark.sql.variant.allowDuplicateKeys");

  /** Prefixes of further settings that are recorded if their values differ from Spark's defaults. */
  private static final String LEGACY = "spark.sql.legacy.";

  private SessionSettings() {}

  /** For Python: returns the settings of a session, in JSON. */
  public static String of(SparkSession session) {
    return Json.write(of(session.sessionState().conf()));
  }

  static Map<String, String> of(SQLConf conf) {
    Map<String, String> found = new TreeMap<>();
    CollectionConverters.asJava(conf.getAllConfs())
        .forEach(
            (name, value) -> {
              ConfigEntry<?> entry = matters(name) ? SQLConf$.MODULE$.getConfigEntry(name) : null;
              if (entry != null && !value.equalsIgnoreCase(entry.defaultValueString())) {
                found.put(name, value);
              }
            });
    ALWAYS.forEach(name -> found.put(name, conf.getConfString(name)));
    return found;
  }

  private static boolean matters(String name) {
    return name.startsWith(LEGACY) || OTHERS.contains(name);
  }
}
