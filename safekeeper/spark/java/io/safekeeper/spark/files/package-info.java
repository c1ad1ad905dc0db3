/**
 * Files in any backend, for whatever speaks Hadoop's file systems: {@code safekeeper://VOLUME/PATH}. The agent knows the
 * layout ({@code docs/file-systems.md}).
 *
 * <p>Read {@code VolumeFileSystem} first, then {@code VolumeInput} and {@code VolumeOutput} (one file), {@code
 * VolumeErrors} (what the agent answers, as Hadoop says it), {@code VolumeSettings}, and {@code VolumeCheckpoints}: how
 * Spark writes checkpoints there, without temporary files.
 */
package io.safekeeper.spark.files;
