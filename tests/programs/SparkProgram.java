import java.util.List;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.SparkSession;

/** Runs statements, the arguments after "--"; those before are settings. Prints each row as "row: [...]". */
public class SparkProgram {
  public static void main(String[] arguments) {
    SparkSession.Builder builder = SparkSession.builder();
    List<String> words = List.of(arguments);
    int end = words.indexOf("--");
    for (String setting : words.subList(0, end)) {
      String[] pair = setting.split("=", 2);
      builder.config(pair[0], pair[1]);
    }
    SparkSession spark = builder.getOrCreate();
    for (String statement : words.subList(end + 1, words.size())) {
      for (Row row : spark.sql(statement).collectAsList()) {
        System.out.println("row: " + row);
      }
    }
    spark.stop();
  }
}
