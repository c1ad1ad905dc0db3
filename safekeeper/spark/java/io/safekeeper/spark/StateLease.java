package io.safekeeper.spark;

import java.util.concurrent.TimeUnit;

/** The right to use a provider's state; one store at a time has it. */
final class StateLease {
  private static final long LOOK_MILLIS = 100;

  private volatile Holder holder; // changed under this object's lock
  private Thread thread;

  /** Somebody who can have the lease. */
  interface Holder {
    /** Whether it only keeps the lease in case it is read from once more. */
    boolean isDone();

    /** Whether it is loading or committing, which may take long and comes to an end by itself. */
    boolean isBusy();

    /** The lease is somebody else's now: let nothing that was handed out point into the state any more. */
    void endRows();
  }

  /** Somebody else has the lease and did not give it back in time. */
  static final class Held extends Exception {
    private static final long serialVersionUID = 1L;
    private final transient Thread thread;

    Held(Thread thread) {
      super("the thread " + thread.getName() + " did not give the state back in time");
      this.thread = thread;
    }

    /** Who has it. */
    Thread thread() {
      return thread;
    }
  }

  /**
   * Wait until nobody else has the lease, and take it. A holder that is done has to yield to its own thread.
   *
   * @throws Held if somebody still has it after {@code millis}, in which he was not busy with the store
   */
  void acquire(Holder who, long millis) throws InterruptedException, Held {
    Holder done = take(who, millis);
    while (done != null) {
      done.endRows(); // which may wait for another thread that uses it
      done = replace(done, who) ? null : take(who, millis);
    }
  }

  private synchronized boolean replace(Holder done, Holder who) {
    if (holder != done) {
      return false;
    }
    holder = who;
    return true;
  }

  /** Take the lease, or return a holder of this thread's that has to yield. */
  private synchronized Holder take(Holder who, long millis) throws InterruptedException, Held {
    long deadline = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(millis);
    while (holder != null && !(holder.isDone() && thread == Thread.currentThread())) {
      if (holder.isBusy()) {
        deadline = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(millis);
      }
      long left = TimeUnit.NANOSECONDS.toMillis(deadline - System.nanoTime());
      if (left <= 0) {
        throw new Held(thread);
      }
      wait(Math.min(left, LOOK_MILLIS));
    }
    if (holder == null) {
      holder = who;
      thread = Thread.currentThread();
      return null;
    }
    return holder;
  }

  /** Take the lease if nobody has it, without waiting; return whether. */
  synchronized boolean acquireIfFree(Holder who) {
    if (holder != null) {
      return false;
    }
    holder = who;
    thread = Thread.currentThread();
    return true;
  }

  /** Give the lease back. That somebody else has it is not an error. */
  synchronized void release(Holder who) {
    if (holder == who) {
      holder = null;
      thread = null;
      notifyAll();
    }
  }

  boolean isHeldBy(Holder who) {
    return holder == who;
  }

  /** Who has the lease, if this thread took it, else null. */
  synchronized Holder holderOfThisThread() {
    return thread == Thread.currentThread() ? holder : null;
  }

  /** Do something unless somebody has the lease; nobody gets it meanwhile. */
  synchronized void ifFree(Runnable work) {
    if (holder == null) {
      work.run();
    }
  }
}
