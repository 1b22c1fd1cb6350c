import java.io.File;
import java.net.URI;
import org.apache.iceberg.Files;
import org.apache.iceberg.io.FileIO;
import org.apache.iceberg.io.InputFile;
import org.apache.iceberg.io.OutputFile;

/** Files of this machine by plain Java, for both sides of a measurement: Hadoop's own costs several milliseconds each. */
public class LocalFiles implements FileIO {
  @Override
  public InputFile newInputFile(String location) {
    return Files.localInput(file(location));
  }

  @Override
  public OutputFile newOutputFile(String location) {
    return Files.localOutput(file(location));
  }

  @Override
  public void deleteFile(String location) {
    file(location).delete();
  }

  private static File file(String location) {
    return location.startsWith("file:") ? new File(URI.create(location).getPath()) : new File(location);
  }
}
