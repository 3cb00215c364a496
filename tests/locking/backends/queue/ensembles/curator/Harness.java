import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.RetryOneTime;

/**
 * A Curator client that carries out the commands of its standard input, one per line, and prints a line for each:
 * {@code <id> <thread> <verb> <kind> <path> [milliseconds]} is answered by {@code <id> <result>}.
 *
 * <p>A mutex belongs to a thread, so each {@code <thread>} named is one of its own.
 */
public final class Harness {
    private static final Map<String, ExecutorService> THREADS = new ConcurrentHashMap<>();

    private static final Map<String, InterProcessMutex> LOCKS = new ConcurrentHashMap<>();

    private static CuratorFramework curator;

    public static void main(String[] arguments) throws Exception {
        curator = CuratorFrameworkFactory.newClient(arguments[0], 4_000, 10_000, new RetryOneTime(100));
        curator.start();
        curator.blockUntilConnected();
        answer("ready", String.valueOf(curator.getZookeeperClient().getZooKeeper().getSessionId()));
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split(" ");
            THREADS.computeIfAbsent(words[1], name -> Executors.newSingleThreadExecutor())
                    .submit(() -> obey(words));
        }
        curator.close();
        System.exit(0);
    }

    private static void obey(String[] words) {
        try {
            InterProcessMutex lock = LOCKS.computeIfAbsent(words[4], path -> new InterProcessMutex(curator, path));
            answer(words[0], String.valueOf(done(words[2], lock)));
        } catch (Throwable error) {
            answer(words[0], "error " + error);
        }
    }

    private static Object done(String verb, InterProcessMutex lock) throws Exception {
        switch (verb) {
            case "try": // don't wait
                return lock.acquire(0, TimeUnit.MILLISECONDS);
            case "wait": // a minute for it
                return lock.acquire(60, TimeUnit.SECONDS);
            case "unlock":
                lock.release();
                return "done";
            case "waiting": // how many stand in line, the holder too
                return lock.getParticipantNodes().size();
            default:
                throw new IllegalArgumentException(verb);
        }
    }

    private static synchronized void answer(String id, String result) {
        System.out.println(id + " " + result);
        System.out.flush();
    }
}
