package io.polarisspark;

import org.apache.iceberg.exceptions.NotFoundException;
import org.apache.iceberg.io.InputFile;
import org.apache.iceberg.io.ResolvingFileIO;
import org.apache.iceberg.io.SeekableInputStream;

/**
 * Iceberg's default FileIO, for tables whose metadata files may not have been written. With {@code
 * metadata-files=never}, the metadata is only in the catalog's rows. But Iceberg asks for the length of the metadata
 * file before it shows {@code snapshots}, {@code history} or {@code refs}, although it does not read the file.
 */
public class PolarisFileIO extends ResolvingFileIO {

  @Override
  public InputFile newInputFile(String location) {
    InputFile file = super.newInputFile(location);
    return location.endsWith(".metadata.json") ? new MetadataFile(file) : file;
  }

  /** A metadata file whose length is 0 if it does not exist. */
  private record MetadataFile(InputFile file) implements InputFile {

    @Override
    public long getLength() {
      try {
        return file.getLength();
      } catch (NotFoundException e) {
        return 0;
      }
    }

    @Override
    public SeekableInputStream newStream() {
      return file.newStream();
    }

    @Override
    public String location() {
      return file.location();
    }

    @Override
    public boolean exists() {
      return file.exists();
    }
  }
}
