package io.safekeeper.spark.files;

import io.safekeeper.spark.agent.AgentException;
import java.io.FileNotFoundException;
import java.io.IOException;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.ParentNotDirectoryException;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.PathIsDirectoryException;
import org.apache.hadoop.fs.PathIsNotEmptyDirectoryException;

/** What the agent answers, as Hadoop says it. */
final class VolumeErrors {
  private VolumeErrors() {}

  /** Something that is asked of the agent about a path. */
  interface Question<T> {
    T ask() throws IOException;
  }

  /** Something that the agent is told to do. */
  interface Order {
    void give() throws IOException;
  }

  /** The answer; an error is Hadoop's for such a thing. */
  static <T> T of(Path path, Question<T> question) throws IOException {
    try {
      return question.ask();
    } catch (AgentException error) {
      throw translated(path, error);
    }
  }

  /** The same for what has no answer. */
  static void of(Path path, Order order) throws IOException {
    of(path, () -> {
      order.give();
      return null;
    });
  }

  private static IOException translated(Path path, AgentException error) {
    IOException known = switch (error.code()) {
      case NOT_FOUND -> new FileNotFoundException(path + " does not exist");
      case EXISTS -> new FileAlreadyExistsException(path + " exists already");
      case NOT_DIRECTORY -> new ParentNotDirectoryException("a file is in the way of " + path);
      case IS_DIRECTORY -> new PathIsDirectoryException(path.toString());
      case NOT_EMPTY -> new PathIsNotEmptyDirectoryException(path.toString());
      default -> new IOException(path + ": " + error.getMessage());
    };
    known.initCause(error);
    return known;
  }
}
