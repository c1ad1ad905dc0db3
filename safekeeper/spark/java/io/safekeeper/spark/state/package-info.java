/**
 * The state of one partition: a map from keys to values that is a log of its changes, outside the heap.
 *
 * <p>It knows nothing of commits in a store, of the agent, or of the state store interface; of Spark it uses the rows
 * and the encoding of keys.
 *
 * <p>Read {@code Record} first (the bytes), then {@code Pages} (the memory they are in), which {@code StateMemory} gives,
 * from files by {@code MappedSlab}; {@code StateMemoryError} says that there is none. Then {@code HashIndex} and
 * {@code OrderedIndex} (where the newest record of a key is), {@code Family} (the indexes of one column family) and
 * {@code StateLog}, which puts them together. {@code Savepoint} is a version that the log can go back to by its
 * {@code UndoList}, {@code Extent} what a load has to replay, {@code ValueList} the value of a key that has several, {@code Addresses} a
 * list of records.
 */
package io.safekeeper.spark.state;
