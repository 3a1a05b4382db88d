import java.io.BufferedReader;
import java.io.File;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.Random;
import java.util.TreeMap;
import java.util.stream.Stream;

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.hdfs.DistributedFileSystem;
import org.apache.hadoop.hdfs.MiniDFSCluster;
import org.apache.hadoop.hdfs.MiniDFSCluster.DataNodeProperties;
import org.apache.hadoop.hdfs.MiniDFSNNTopology;
import org.apache.hadoop.hdfs.MiniDFSNNTopology.NNConf;
import org.apache.hadoop.hdfs.MiniDFSNNTopology.NSConf;
import org.apache.hadoop.hdfs.protocol.HdfsConstants.SafeModeAction;

/**
 * A real HDFS in one process, told by lines on stdin what to suffer. Each line gets one line on
 * stdout, "@ ok ..." or "@ error ..."; the first comes unasked once the file system is up. The
 * end of stdin ends the process: no cluster outlives its test.
 *
 * <p>Arguments: folder, name nodes (1 or 2), data nodes, then settings as name=value.
 */
public final class HdfsForTests {
    private static final String NAMESERVICE = "optimus";

    private final MiniDFSCluster cluster;
    private final Path folder;
    private final int nameNodes;
    private final int[] ports;
    /** Data nodes by the number they were started with; a dead one waits here for its return. */
    private final TreeMap<Integer, DataNodeProperties> dead = new TreeMap<>();
    private final List<String> names = new ArrayList<>();

    public static void main(String[] args) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err);
        Path folder = Path.of(args[0]);
        HdfsForTests hdfs;
        try {
            hdfs = new HdfsForTests(folder, args);
            answers.println("@ ok " + hdfs.address());
        } catch (Throwable error) {
            error.printStackTrace();
            answers.println("@ error " + words(error));
            answers.flush();
            Runtime.getRuntime().halt(1);
            return;
        }
        answers.flush();
        BufferedReader lines =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] parts = line.split(" ");
            if (parts[0].equals("exit")) {
                break;
            }
            try {
                answers.println("@ ok " + hdfs.obeyAgain(parts));
            } catch (Throwable error) {
                error.printStackTrace();
                answers.println("@ error " + words(error));
            }
            answers.flush();
        }
        // An orderly stop takes seconds, and nobody reads this file system again.
        delete(folder);
        Runtime.getRuntime().halt(0);
    }

    /** A connection kept to a NameNode that has ended since breaks the first call over it. */
    private String obeyAgain(String[] parts) throws Exception {
        try {
            return obey(parts);
        } catch (java.io.EOFException stale) {
            return obey(parts);
        }
    }

    private HdfsForTests(Path folder, String[] args) throws IOException {
        this.folder = folder;
        nameNodes = Integer.parseInt(args[1]);
        int dataNodes = Integer.parseInt(args[2]);
        Configuration conf = settings(dataNodes);
        for (int i = 3; i < args.length; i++) {
            String[] pair = args[i].split("=", 2);
            conf.set(pair[0], pair[1]);
        }
        ports = freePorts(nameNodes);
        NSConf service = new NSConf(nameNodes > 1 ? NAMESERVICE : null);
        for (int i = 0; i < nameNodes; i++) {
            service.addNN(new NNConf(nameNodes > 1 ? "nn" + (i + 1) : null).setIpcPort(ports[i]));
        }
        cluster = new MiniDFSCluster.Builder(conf, folder.resolve("data").toFile())
            .nnTopology(new MiniDFSNNTopology().addNameservice(service))
            .numDataNodes(dataNodes)
            .checkExitOnShutdown(false)
            .build();
        if (nameNodes > 1) {
            cluster.transitionToActive(0);
        }
        cluster.waitActive();
        cluster.getDataNodes().forEach(node -> names.add(node.getDatanodeId().getXferAddr()));
        writeClientFiles();
    }

    private static Configuration settings(int dataNodes) {
        Configuration conf = new Configuration();
        // The agents of a test run as root or as nobody.
        conf.set("dfs.permissions.enabled", "false");
        conf.set("dfs.replication", Integer.toString(Math.min(2, Math.max(1, dataNodes))));
        // Small blocks make many of them with little data.
        conf.set("dfs.namenode.fs-limits.min-block-size", "512");
        conf.set("dfs.heartbeat.interval", "1s");
        // A data node is dead after 2 of these and 10 heartbeats.
        conf.set("dfs.namenode.heartbeat.recheck-interval", "500");
        conf.set("dfs.ha.tail-edits.period", "200ms");
        return conf;
    }

    /** Ports below those that the kernel hands out, so that a dead NameNode finds its own again. */
    private static int[] freePorts(int count) throws IOException {
        Random random = new Random();
        int[] found = new int[count];
        for (int i = 0; i < count; ) {
            int port = 15000 + random.nextInt(15000);
            try (ServerSocket probe = new ServerSocket()) {
                probe.bind(new InetSocketAddress(InetAddress.getLoopbackAddress(), port));
                found[i++] = port;
            } catch (IOException taken) {
                // Another draw.
            }
        }
        return found;
    }

    private String address() {
        return nameNodes > 1 ? NAMESERVICE : "127.0.0.1:" + ports[0];
    }

    /** What a client's HADOOP_CONF_DIR holds. */
    private void writeClientFiles() throws IOException {
        Path place = Files.createDirectories(folder.resolve("conf"));
        Configuration core = new Configuration(false);
        core.set("fs.defaultFS", "hdfs://" + address());
        Configuration hdfs = new Configuration(false);
        hdfs.set("dfs.replication", cluster.getConfiguration(0).get("dfs.replication"));
        if (nameNodes > 1) {
            hdfs.set("dfs.nameservices", NAMESERVICE);
            hdfs.set("dfs.ha.namenodes." + NAMESERVICE, "nn1,nn2");
            hdfs.set("dfs.client.failover.proxy.provider." + NAMESERVICE,
                "org.apache.hadoop.hdfs.server.namenode.ha.ConfiguredFailoverProxyProvider");
            for (int i = 0; i < nameNodes; i++) {
                hdfs.set("dfs.namenode.rpc-address." + NAMESERVICE + ".nn" + (i + 1),
                    "127.0.0.1:" + ports[i]);
            }
        }
        write(core, place.resolve("core-site.xml"));
        write(hdfs, place.resolve("hdfs-site.xml"));
    }

    private static void write(Configuration conf, Path file) throws IOException {
        try (OutputStream out = Files.newOutputStream(file)) {
            conf.writeXml(out);
        }
    }

    private String obey(String[] words) throws Exception {
        String verb = words[0];
        switch (verb) {
            case "kill-name-node":
                cluster.shutdownNameNode(number(words, 1));
                return "";
            case "restart-name-node":
                cluster.restartNameNode(number(words, 1), false);
                return "";
            case "active":
                cluster.transitionToActive(number(words, 1));
                return "";
            case "standby":
                cluster.transitionToStandby(number(words, 1));
                return "";
            case "kill-data-node":
                killDataNode(number(words, 1));
                return "";
            case "restart-data-node":
                restartDataNode(number(words, 1));
                return "";
            case "safe-mode":
                files().setSafeMode(
                    words[1].equals("on") ? SafeModeAction.SAFEMODE_ENTER : SafeModeAction.SAFEMODE_LEAVE);
                return "";
            case "make-dir":
                files().mkdirs(path(words, 1));
                return "";
            case "quota":
                // Both 0 takes the quota away.
                files().setQuota(path(words, 1), quota(words[2]), quota(words[3]));
                return "";
            case "lease":
                cluster.setLeasePeriod(Long.parseLong(words[1]), Long.parseLong(words[2]));
                return "";
            case "look":
                return look(words);
            default:
                throw new IllegalArgumentException("unknown: " + verb);
        }
    }

    private static int number(String[] words, int at) {
        return Integer.parseInt(words[at]);
    }

    private static org.apache.hadoop.fs.Path path(String[] words, int at) {
        return new org.apache.hadoop.fs.Path(words[at]);
    }

    private static long quota(String word) {
        long wanted = Long.parseLong(word);
        return wanted == 0 ? -1 : wanted;
    }

    /** The file system seen through the NameNode that is active. */
    private DistributedFileSystem files() throws IOException {
        for (int i = 0; i < nameNodes; i++) {
            if (cluster.getNameNode(i) != null && cluster.getNameNode(i).isActiveState()) {
                return cluster.getFileSystem(i);
            }
        }
        throw new IOException("no NameNode is active");
    }

    private void killDataNode(int index) throws IOException {
        DataNodeProperties stopped = cluster.stopDataNode(names.get(index));
        if (stopped == null) {
            throw new IOException("data node " + index + " is dead already");
        }
        dead.put(index, stopped);
    }

    private void restartDataNode(int index) throws IOException {
        DataNodeProperties stopped = dead.remove(index);
        if (stopped == null) {
            throw new IOException("data node " + index + " is not dead");
        }
        cluster.restartDataNode(stopped, true);
        cluster.waitActive();
    }

    /** kind length replication block-size open|closed, or "absent". */
    private String look(String[] words) throws IOException {
        if (!files().exists(path(words, 1))) {
            return "absent";
        }
        FileStatus found = files().getFileStatus(path(words, 1));
        boolean closed = found.isDirectory() || files().isFileClosed(path(words, 1));
        return String.join(" ", found.isDirectory() ? "folder" : "file",
            Long.toString(found.getLen()), Short.toString(found.getReplication()),
            Long.toString(found.getBlockSize()), closed ? "closed" : "open");
    }

    private static String words(Throwable error) {
        return error.toString().replace('\n', ' ').replace('\r', ' ');
    }

    private static void delete(Path folder) {
        try (Stream<Path> all = Files.walk(folder)) {
            all.sorted(Comparator.reverseOrder()).map(Path::toFile).forEach(File::delete);
        } catch (IOException gone) {
            // The test removed it first.
        }
    }
}
