/**
 * What Spark sees: the provider of state stores, and the store that a task reads and writes row by row.
 *
 * <p>The rest is in four packages. Each uses only those to its right:
 *
 * <pre>
 * spark  --&gt;  commits  --&gt;  state    the state of one partition, outside the heap
 *                      --&gt;  agent    the process beside the executor that keeps commits in a backend
 *        --&gt;  shim                    what differs between the minor versions of Spark, in a folder for each
 * </pre>
 *
 * <p>Read {@code SafeKeeperStateStoreProvider} first, then {@code SafeKeeperStateStore}, and {@code StateLease}, which
 * says who may use the state. {@code ProviderSettings} is what a user can set. {@code FamilySpec}, {@code FamilySpecs},
 * {@code FamilyView} and {@code FamilyViews} are the column families as Spark describes them; {@code RowPairs},
 * {@code ListedRows} and {@code ChangeFeed} are the iterators that it gets, and {@code HandedRows} the rows that it got; {@code StoreMetrics} is what it shows. {@code QueryIdentity} tells
 * whose state it is, and {@code Cluster} whether all executors would see it.
 */
package io.safekeeper.spark;
