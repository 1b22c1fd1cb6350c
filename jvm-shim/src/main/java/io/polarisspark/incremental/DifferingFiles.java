package io.polarisspark.incremental;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.lang.reflect.Proxy;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.Consumer;
import java.util.stream.Collectors;
import org.apache.iceberg.BaseTable;
import org.apache.iceberg.ContentFile;
import org.apache.iceberg.DataFile;
import org.apache.iceberg.DeleteFile;
import org.apache.iceberg.FileContent;
import org.apache.iceberg.FileScanTask;
import org.apache.iceberg.HasTableOperations;
import org.apache.iceberg.ManifestFile;
import org.apache.iceberg.ManifestFiles;
import org.apache.iceberg.Snapshot;
import org.apache.iceberg.StructLike;
import org.apache.iceberg.Table;
import org.apache.iceberg.io.CloseableIterable;
import org.apache.iceberg.types.Comparators;
import org.apache.iceberg.types.Conversions;
import org.apache.iceberg.types.Type;
import org.apache.iceberg.types.Types;
import org.apache.iceberg.util.ContentFileUtil;
import org.apache.iceberg.util.Pair;
import org.apache.iceberg.util.PartitionMap;
import org.apache.iceberg.util.Tasks;
import org.apache.iceberg.util.ThreadPools;

/**
 * Plans the data files that can differ between two snapshots of a table, with their delete files.
 *
 * <p>A file whose manifest and delete files are the same in both snapshots does not differ. So of the
 * manifests that both snapshots have, only these are read:
 *
 * <ul>
 *   <li>data manifests that can list a file to which an added or removed delete file applies. If the
 *       delete file names its data file, they are searched for that file;
 *   <li>delete manifests that can list a delete file for one of the files that can differ.
 * </ul>
 *
 * Both are found by their partitions and sequence numbers. Iceberg's own scan then plans the manifests that
 * remain, so it decides which delete files apply to which data files.
 */
final class DifferingFiles {
  private static final List<String> COLUMNS = List.of("file_path", "partition", "record_count");

  private final Table table;

  /** Partitions of files that can differ, with the smallest sequence number of these files. */
  private final PartitionMap<Long> places;

  /** Manifests of both snapshots that list data files that can differ. */
  private final Set<ManifestFile> shared = new LinkedHashSet<>();

  /** Whether a delete file that applies to all partitions was added or removed. */
  private boolean everywhere;

  private final List<FileScanTask> before;
  private final List<FileScanTask> after;

  DifferingFiles(Table table, Snapshot earlier, Snapshot later) {
    this.table = table;
    this.places = PartitionMap.create(table.specs());
    Manifests data =
        new Manifests(earlier.dataManifests(table.io()), later.dataManifests(table.io()));
    Manifests deletes =
        new Manifests(earlier.deleteManifests(table.io()), later.deleteManifests(table.io()));
    Map<String, DataFile> old = dataFiles(data.removed());
    Map<String, DataFile> now = dataFiles(data.added());
    List<DeleteFile> changed = changed(deletes);
    for (Map<String, DataFile> files : List.of(old, now)) {
      files.forEach(
          (path, file) -> {
            if (!changed.isEmpty() || !old.containsKey(path) || !now.containsKey(path)) {
              place(file, file.dataSequenceNumber());
            }
          });
    }
    if (!changed.isEmpty()) {
      share(data.common(), changed, old.keySet(), now.keySet());
    }
    List<ManifestFile> needed = deletes.common().stream().filter(this::isNeeded).toList();
    before = plan(earlier, joined(data.removed(), shared), joined(deletes.removed(), needed));
    after = plan(later, joined(data.added(), shared), joined(deletes.added(), needed));
  }

  /** Returns the files of the earlier snapshot. Files that do not differ can be among them. */
  List<FileScanTask> before() {
    return before;
  }

  /** Returns the files of the later snapshot. Files that do not differ can be among them. */
  List<FileScanTask> after() {
    return after;
  }

  /** The manifests of one kind that only one of the snapshots has, or both have. */
  private record Manifests(
      List<ManifestFile> removed, List<ManifestFile> added, List<ManifestFile> common) {
    Manifests(List<ManifestFile> earlier, List<ManifestFile> later) {
      this(without(earlier, later), without(later, earlier), within(later, earlier));
    }

    private static List<ManifestFile> without(List<ManifestFile> some, List<ManifestFile> others) {
      Set<ManifestFile> found = new HashSet<>(others);
      return some.stream().filter(one -> !found.contains(one)).toList();
    }

    private static List<ManifestFile> within(List<ManifestFile> some, List<ManifestFile> others) {
      Set<ManifestFile> found = new HashSet<>(others);
      return some.stream().filter(found::contains).toList();
    }
  }

  /** Adds the manifests of both snapshots that list files to which one of the changed delete files applies. */
  private void share(
      List<ManifestFile> common, List<DeleteFile> changed, Set<String> old, Set<String> now) {
    Set<String> named = ConcurrentHashMap.newKeySet();
    PartitionMap<Long> namedIn = PartitionMap.create(table.specs());
    PartitionMap<Long> unnamedIn = PartitionMap.create(table.specs());
    long anywhere = -1;
    for (DeleteFile delete : changed) {
      long sequence = delete.dataSequenceNumber();
      String path = ContentFileUtil.referencedDataFileLocation(delete);
      if (path != null && old.contains(path) && !now.contains(path)) {
        continue; // a removed file is in no manifest of both snapshots
      }
      if (path != null) {
        named.add(path);
      } else if (delete.content() == FileContent.EQUALITY_DELETES && isUnpartitioned(delete.specId())) {
        anywhere = Math.max(anywhere, sequence);
      }
      PartitionMap<Long> places = path == null ? unnamedIn : namedIn;
      places.merge(key(delete), sequence, Math::max);
    }
    everywhere = anywhere >= 0;
    for (ManifestFile manifest : common) {
      if (manifest.minSequenceNumber() <= anywhere || canList(manifest, unnamedIn)) {
        shared.add(manifest);
      }
    }
    Set<String> found = ConcurrentHashMap.newKeySet();
    found.addAll(now);
    List<ManifestFile> likely = common.stream().filter(one -> canList(one, namedIn)).toList();
    search(likely, named, found);
    if (!found.containsAll(named)) {
      List<ManifestFile> rest = new ArrayList<>(common);
      rest.removeAll(likely);
      search(rest, named, found);
    }
    long first = shared.stream().mapToLong(ManifestFile::minSequenceNumber).min().orElse(Long.MAX_VALUE);
    changed.forEach(delete -> place(delete, first));
  }

  /** Searches manifests for data files. Adds the manifests that list them to {@code shared}. */
  private void search(List<ManifestFile> manifests, Set<String> paths, Set<String> found) {
    Tasks.foreach(paths.isEmpty() ? List.<ManifestFile>of() : manifests)
        .executeWith(ThreadPools.getWorkerPool())
        .stopOnFailure()
        .throwFailureWhenFinished()
        .run(
            manifest ->
                read(
                    manifest,
                    file -> {
                      if (paths.contains(file.location())) {
                        found.add(file.location());
                        synchronized (shared) {
                          shared.add(manifest);
                          place(file, file.dataSequenceNumber());
                        }
                      }
                    }));
  }

  private boolean canList(ManifestFile manifest, PartitionMap<Long> latest) {
    return latest.entrySet().stream()
        .anyMatch(
            place ->
                manifest.minSequenceNumber() <= place.getValue()
                    && canList(manifest, place.getKey().first(), place.getKey().second()));
  }

  /** Whether a manifest of delete files can list one that applies to a file that can differ. */
  private boolean isNeeded(ManifestFile manifest) {
    boolean anyPartition = everywhere || isUnpartitioned(manifest.partitionSpecId());
    return places.entrySet().stream()
        .anyMatch(
            place ->
                manifest.sequenceNumber() >= place.getValue()
                    && (anyPartition
                        || canList(manifest, place.getKey().first(), place.getKey().second())));
  }

  /** Whether a manifest can list files of a partition. */
  private boolean canList(ManifestFile manifest, int spec, StructLike partition) {
    if (manifest.partitionSpecId() != spec) {
      return false;
    }
    List<ManifestFile.PartitionFieldSummary> summaries = manifest.partitions();
    List<Types.NestedField> fields = table.specs().get(spec).partitionType().fields();
    for (int position = 0; summaries != null && position < summaries.size(); position++) {
      Type.PrimitiveType type = fields.get(position).type().asPrimitiveType();
      Object value = partition.get(position, type.typeId().javaClass());
      if (!contains(summaries.get(position), type, value)) {
        return false;
      }
    }
    return true;
  }

  private static boolean contains(
      ManifestFile.PartitionFieldSummary summary, Type.PrimitiveType type, Object value) {
    if (value == null) {
      return summary.containsNull();
    }
    ByteBuffer lower = summary.lowerBound();
    ByteBuffer upper = summary.upperBound();
    if (lower == null || upper == null || value.equals(Float.NaN) || value.equals(Double.NaN)) {
      return true;
    }
    return Comparators.forType(type).compare(Conversions.fromByteBuffer(type, lower), value) <= 0
        && Comparators.forType(type).compare(value, Conversions.fromByteBuffer(type, upper)) <= 0;
  }

  private boolean isUnpartitioned(int spec) {
    return table.specs().get(spec).isUnpartitioned();
  }

  private void place(ContentFile<?> file, long sequence) {
    places.merge(key(file), sequence, Math::min);
  }

  private static Pair<Integer, StructLike> key(ContentFile<?> file) {
    return Pair.of(file.specId(), file.partition());
  }

  private Map<String, DataFile> dataFiles(List<ManifestFile> manifests) {
    Map<String, DataFile> all = new HashMap<>();
    manifests.forEach(manifest -> read(manifest, file -> all.put(file.location(), file)));
    return all;
  }

  private void read(ManifestFile manifest, Consumer<DataFile> each) {
    try (CloseableIterable<DataFile> files =
        ManifestFiles.read(manifest, TableChanges.files(table), table.specs()).select(COLUMNS)) {
      files.forEach(file -> each.accept(file.copyWithoutStats()));
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
  }

  /** Returns the delete files that only one of the snapshots has. */
  private List<DeleteFile> changed(Manifests manifests) {
    Map<List<Object>, DeleteFile> old = deleteFiles(manifests.removed());
    Map<List<Object>, DeleteFile> now = deleteFiles(manifests.added());
    Set<List<Object>> both = old.keySet().stream().filter(now::containsKey).collect(Collectors.toSet());
    old.putAll(now);
    old.keySet().removeAll(both);
    return List.copyOf(old.values());
  }

  private Map<List<Object>, DeleteFile> deleteFiles(List<ManifestFile> manifests) {
    Map<List<Object>, DeleteFile> all = new HashMap<>();
    for (ManifestFile manifest : manifests) {
      try (CloseableIterable<DeleteFile> files =
          ManifestFiles.readDeleteManifest(manifest, TableChanges.files(table), table.specs())) {
        files.forEach(file -> all.put(TableChanges.identity(file), file.copy()));
      } catch (IOException error) {
        throw new UncheckedIOException(error);
      }
    }
    return all;
  }

  private static List<ManifestFile> joined(
      Collection<ManifestFile> some, Collection<ManifestFile> others) {
    List<ManifestFile> all = new ArrayList<>(some);
    all.addAll(others);
    return all;
  }

  /** Plans some manifests of a snapshot. */
  private List<FileScanTask> plan(
      Snapshot snapshot, List<ManifestFile> data, List<ManifestFile> deletes) {
    Snapshot part =
        (Snapshot)
            Proxy.newProxyInstance(
                Snapshot.class.getClassLoader(),
                new Class<?>[] {Snapshot.class},
                (proxy, method, arguments) ->
                    switch (method.getName()) {
                      case "dataManifests" -> data;
                      case "deleteManifests" -> deletes;
                      default -> method.invoke(snapshot, arguments);
                    });
    Table scanned =
        new BaseTable(((HasTableOperations) table).operations(), table.name(), report -> {}) {
          @Override
          public Snapshot snapshot(long id) {
            return part;
          }
        };
    return TableChanges.tasks(scanned.newScan().useSnapshot(snapshot.snapshotId()));
  }
}
