package io.safekeeper.spark;

import java.io.OutputStream;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.util.ArrayList;
import java.util.List;
import org.apache.spark.benchmark.Benchmark;
import scala.Function1;
import scala.Option;
import scala.concurrent.duration.FiniteDuration;
import scala.runtime.BoxedUnit;

/**
 * Runs the cases of one of Spark's benchmarks in turns, where Spark runs one after the other, so that what else the
 * machine does hits all alike. A turn is one line: the benchmark, the case, the rows, and the nanoseconds that passed and
 * that the thread has used, all separated by tabs.
 */
public final class InterleavedBenchmark extends Benchmark {
  private static final int WARM_UPS = Integer.getInteger("safekeeper.warmups");
  private static final int ROUNDS = Integer.getInteger("safekeeper.rounds");
  private static final ThreadMXBean THREADS = ManagementFactory.getThreadMXBean();

  private record TimedCase(String name, Function1<Benchmark.Timer, BoxedUnit> work) {}

  /** A timer that also tells the processor time. */
  private static final class ProcessorTimer extends Benchmark.Timer {
    private long processor;

    ProcessorTimer(int iteration) {
      super(iteration);
    }

    @Override
    public void startTiming() {
      processor -= THREADS.getCurrentThreadCpuTime();
      super.startTiming();
    }

    @Override
    public void stopTiming() {
      super.stopTiming();
      processor += THREADS.getCurrentThreadCpuTime();
    }
  }

  private final String name;
  private final long rows;
  private final List<TimedCase> cases = new ArrayList<>();

  public InterleavedBenchmark(
      String name,
      long rows,
      int leastIterations,
      FiniteDuration warmUp,
      FiniteDuration leastTime,
      boolean everyIteration,
      Option<OutputStream> output) {
    super(name, rows, leastIterations, warmUp, leastTime, everyIteration, output);
    this.name = name;
    this.rows = rows;
  }

  @Override
  public void addTimerCase(String caseName, int iterations, Function1<Benchmark.Timer, BoxedUnit> work) {
    cases.add(new TimedCase(caseName, work));
  }

  /** Run the cases, unless none of them is of the provider in memory, which is ours: nothing would be compared. */
  @Override
  public void run(boolean relative) {
    if (cases.stream().noneMatch(one -> one.name.equals("In-memory"))) {
      return;
    }
    for (int round = -WARM_UPS; round < ROUNDS; round++) {
      for (TimedCase one : cases) {
        ProcessorTimer timer = new ProcessorTimer(round);
        one.work.apply(timer);
        if (round >= 0) {
          System.out.println(
              String.join(
                  "\t",
                  "turn",
                  name,
                  one.name,
                  String.valueOf(rows),
                  String.valueOf(timer.totalTime()),
                  String.valueOf(timer.processor)));
        }
      }
    }
  }
}
