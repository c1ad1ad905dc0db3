import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.hdfs.DistributedFileSystem;

/** What somebody would write by hand who only wants bytes in HDFS: the peer of {@code bench/studies/hdfs_overhead.py}. */
public final class HdfsRaw {
    private final DistributedFileSystem files;
    private final short replication;
    private FSDataOutputStream open;

    public HdfsRaw(DistributedFileSystem files, int replication) {
        this.files = files;
        this.replication = (short) replication;
    }

    /** Append records to one open file and sync each, for so many nanoseconds; records per second. */
    public double records(String path, int size, long nanoseconds) throws Exception {
        byte[] record = new byte[size];
        if (open == null) {
            open = create(path, 128L << 20);
        }
        long started = System.nanoTime();
        long count = 0;
        while (System.nanoTime() - started < nanoseconds) {
            open.write(record);
            open.hsync();
            count++;
        }
        return count * 1e9 / (System.nanoTime() - started);
    }

    /** Write values, each in files of so many bytes, several at once, synced and closed; bytes per second. */
    public double values(String folder, int count, byte[] value, int chunk, int threads) throws Exception {
        ExecutorService pool = Executors.newFixedThreadPool(threads);
        try {
            long started = System.nanoTime();
            for (int turn = 0; turn < count; turn++) {
                List<Future<?>> parts = new ArrayList<>();
                for (int start = 0; start < value.length; start += chunk) {
                    String path = folder + "/" + turn + "-" + start;
                    int from = start;
                    parts.add(pool.submit(() -> {
                        write(path, value, from, Math.min(chunk, value.length - from));
                        return null;
                    }));
                }
                for (Future<?> part : parts) {
                    part.get();
                }
            }
            return (double) count * value.length * 1e9 / (System.nanoTime() - started);
        } finally {
            pool.shutdown();
            files.delete(new Path(folder), true);
        }
    }

    private void write(String path, byte[] value, int start, int size) throws Exception {
        // A block that is just full has ended before hsync is called, which then syncs nothing.
        try (FSDataOutputStream out = create(path, size + (1L << 20))) {
            out.write(value, start, size);
            out.hsync();
        }
    }

    private FSDataOutputStream create(String path, long block) throws Exception {
        return files.createFile(new Path(path)).recursive().overwrite(true).replication(replication).blockSize(block)
                .syncBlock().build();
    }

    /** Close the file of the records. */
    public void close() throws Exception {
        if (open != null) {
            open.close();
        }
    }
}
