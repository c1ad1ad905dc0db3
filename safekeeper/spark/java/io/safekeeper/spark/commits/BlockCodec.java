package io.safekeeper.spark.commits;

import com.github.luben.zstd.Zstd;
import java.util.Arrays;
import net.jpountz.lz4.LZ4Factory;

/** How the blocks of a commit are compressed. The libraries are those that Spark itself ships. */
public enum BlockCodec {
  NONE(0) {
    @Override
    int bound(int length) {
      return length;
    }

    @Override
    int compress(byte[] from, int at, int length, byte[] to, int toAt) {
      System.arraycopy(from, at, to, toAt, length);
      return length;
    }

    @Override
    void decompress(byte[] from, int at, int length, byte[] to, int toAt, int toLength) {
      checkLength(length, toLength);
      System.arraycopy(from, at, to, toAt, length);
    }
  },

  LZ4(1) {
    @Override
    int bound(int length) {
      return LZ4Factory.fastestInstance().fastCompressor().maxCompressedLength(length);
    }

    @Override
    int compress(byte[] from, int at, int length, byte[] to, int toAt) {
      return LZ4Factory.fastestInstance().fastCompressor().compress(from, at, length, to, toAt, to.length - toAt);
    }

    @Override
    void decompress(byte[] from, int at, int length, byte[] to, int toAt, int toLength) {
      int found = LZ4Factory.fastestInstance().safeDecompressor().decompress(from, at, length, to, toAt, toLength);
      checkLength(found, toLength);
    }
  },

  ZSTD(2) {
    @Override
    int bound(int length) {
      return Math.toIntExact(Zstd.compressBound(length));
    }

    @Override
    int compress(byte[] from, int at, int length, byte[] to, int toAt) {
      return (int) checked(Zstd.compressByteArray(to, toAt, to.length - toAt, from, at, length, ZSTD_LEVEL));
    }

    @Override
    void decompress(byte[] from, int at, int length, byte[] to, int toAt, int toLength) {
      checkLength(checked(Zstd.decompressByteArray(to, toAt, toLength, from, at, length)), toLength);
    }

    private long checked(long result) {
      if (Zstd.isError(result)) {
        throw new IllegalStateException("zstd: " + Zstd.getErrorName(result));
      }
      return result;
    }
  };

  /** As fast as LZ4, and half its bytes: rows repeat one another word by word, which no level needs long to find. */
  private static final int ZSTD_LEVEL = -2;

  /** The number that stands for it in a commit; frozen. */
  final byte number;

  BlockCodec(int number) {
    this.number = (byte) number;
  }

  static BlockCodec of(byte number) {
    return Arrays.stream(values())
        .filter(codec -> codec.number == number)
        .findFirst()
        .orElseThrow(() -> new IllegalStateException("a commit is compressed by the unknown codec " + number));
  }

  /** How long the result of {@link #compress} can get. */
  abstract int bound(int length);

  /** Compress into {@code to}, which has room, and return the length of the result. */
  abstract int compress(byte[] from, int at, int length, byte[] to, int toAt);

  /** Decompress to {@code to}, where the result fills exactly so many bytes. */
  abstract void decompress(byte[] from, int at, int length, byte[] to, int toAt, int toLength);

  private static void checkLength(long found, int expected) {
    if (found != expected) {
      throw new IllegalStateException("a block of a commit has " + found + " bytes instead of " + expected);
    }
  }
}
