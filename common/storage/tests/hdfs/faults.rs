//! HDFS when it is ill.
