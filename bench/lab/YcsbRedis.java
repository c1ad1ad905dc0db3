import java.io.BufferedInputStream;
import java.io.BufferedOutputStream;
import java.io.DataInputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import java.util.Vector;
import site.ycsb.ByteIterator;
import site.ycsb.DB;
import site.ycsb.DBException;
import site.ycsb.Status;
import site.ycsb.StringByteIterator;

/** Redis for YCSB, each record one string: {@code bench/lab/ycsb_core.py} runs YCSB's own client with it. */
public final class YcsbRedis extends DB {
    private Socket socket;
    private DataInputStream in;
    private OutputStream out;

    @Override
    public void init() throws DBException {
        try {
            socket = new Socket("127.0.0.1", Integer.parseInt(getProperties().getProperty("redis.port")));
            socket.setTcpNoDelay(true);
            in = new DataInputStream(new BufferedInputStream(socket.getInputStream()));
            out = new BufferedOutputStream(socket.getOutputStream());
        } catch (IOException error) {
            throw new DBException(error);
        }
    }

    @Override
    public void cleanup() throws DBException {
        try {
            socket.close();
        } catch (IOException error) {
            throw new DBException(error);
        }
    }

    @Override
    public Status read(String table, String key, Set<String> fields, Map<String, ByteIterator> result) {
        try {
            byte[] value = ask(bytes("GET"), bytes(key));
            if (value == null) {
                return Status.NOT_FOUND;
            }
            result.put("record", new StringByteIterator(new String(value, StandardCharsets.ISO_8859_1)));
            return Status.OK;
        } catch (IOException error) {
            return Status.ERROR;
        }
    }

    @Override
    public Status update(String table, String key, Map<String, ByteIterator> values) {
        return insert(table, key, values);
    }

    @Override
    public Status insert(String table, String key, Map<String, ByteIterator> values) {
        StringBuilder record = new StringBuilder();
        values.values().forEach(field -> record.append(field));
        try {
            ask(bytes("SET"), bytes(key), bytes(record.toString()));
            return Status.OK;
        } catch (IOException error) {
            return Status.ERROR;
        }
    }

    @Override
    public Status delete(String table, String key) {
        return Status.NOT_IMPLEMENTED;
    }

    @Override
    public Status scan(
            String table, String first, int count, Set<String> fields, Vector<HashMap<String, ByteIterator>> result) {
        return Status.NOT_IMPLEMENTED;
    }

    /** Send one command and read its answer: a value, none, or the word of a status. */
    private byte[] ask(byte[]... words) throws IOException {
        out.write(bytes("*" + words.length + "\r\n"));
        for (byte[] word : words) {
            out.write(bytes("$" + word.length + "\r\n"));
            out.write(word);
            out.write(bytes("\r\n"));
        }
        out.flush();
        String head = line();
        if (head.startsWith("+")) {
            return bytes(head.substring(1));
        }
        if (!head.startsWith("$")) {
            throw new IOException(head);
        }
        int length = Integer.parseInt(head.substring(1));
        if (length < 0) {
            return null;
        }
        byte[] value = new byte[length];
        in.readFully(value);
        line();
        return value;
    }

    private String line() throws IOException {
        StringBuilder line = new StringBuilder();
        for (int next = in.readUnsignedByte(); next != '\n'; next = in.readUnsignedByte()) {
            line.append((char) next);
        }
        return line.substring(0, line.length() - 1);
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.ISO_8859_1);
    }
}
