package io.safekeeper.spark;

import java.util.Optional;
import org.apache.spark.SparkEnv;

/** Which interpreter runs the agents. */
public final class PythonChoice {
  private PythonChoice() {}

  /**
   * The one that somebody has set, else the one that PySpark uses: {@code spark.pyspark.python}, else {@code
   * PYSPARK_PYTHON} in the executor's environment, else {@code python3}.
   */
  public static String of(Optional<String> set) {
    return set.or(PythonChoice::ofSpark)
        .or(() -> Optional.ofNullable(System.getenv("PYSPARK_PYTHON")).filter(path -> !path.isEmpty()))
        .orElse("python3");
  }

  private static Optional<String> ofSpark() {
    return Optional.ofNullable(SparkEnv.get()).map(env -> env.conf().get("spark.pyspark.python", null));
  }
}
