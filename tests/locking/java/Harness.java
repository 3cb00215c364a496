import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import org.redisson.Redisson;
import org.redisson.api.RFencedLock;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/**
 * A Redisson client that does what it is told on standard input, one line a command, and answers one line each:
 * {@code <id> <thread> <verb> <kind> <name> [milliseconds]} is answered by {@code <id> <result>}.
 *
 * <p>A lock belongs to a thread, so each {@code <thread>} named is one of its own.
 */
public final class Harness {
    private static final Map<String, ExecutorService> THREADS = new ConcurrentHashMap<>();

    private static RedissonClient redisson;

    public static void main(String[] addresses) throws Exception {
        Config config = new Config();
        if (addresses.length == 1) {
            config.useSingleServer().setAddress(addresses[0]).setConnectionMinimumIdleSize(1);
        } else {
            config.useClusterServers()
                    .addNodeAddress(addresses)
                    .setMasterConnectionMinimumIdleSize(1)
                    .setSlaveConnectionMinimumIdleSize(1);
        }
        redisson = Redisson.create(config);
        answer("ready", redisson.getId());
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split(" ");
            THREADS.computeIfAbsent(words[1], name -> Executors.newSingleThreadExecutor())
                    .submit(() -> obey(words));
        }
        redisson.shutdown();
        System.exit(0);
    }

    private static void obey(String[] words) {
        try {
            long milliseconds = words.length > 5 ? Long.parseLong(words[5]) : 0;
            answer(words[0], String.valueOf(done(words[2], lock(words[3], words[4]), milliseconds)));
        } catch (Throwable error) {
            answer(words[0], "error " + error);
        }
    }

    private static RLock lock(String kind, String name) {
        return kind.equals("fenced") ? redisson.getFencedLock(name) : redisson.getLock(name);
    }

    private static Object done(String verb, RLock lock, long milliseconds) throws InterruptedException {
        switch (verb) {
            case "try": // don't wait
                return lock.tryLock(0, milliseconds, TimeUnit.MILLISECONDS);
            case "wait": // a minute for it, and keep it for so long
                return lock.tryLock(60_000, milliseconds, TimeUnit.MILLISECONDS);
            case "watched": // a minute for it, and renew it
                return lock.tryLock(60_000, -1, TimeUnit.MILLISECONDS);
            case "token":
                return ((RFencedLock) lock).tryLockAndGetToken(60_000, milliseconds, TimeUnit.MILLISECONDS);
            case "unlock":
                lock.unlock();
                return "done";
            case "force":
                return lock.forceUnlock();
            case "locked":
                return lock.isLocked();
            default:
                throw new IllegalArgumentException(verb);
        }
    }

    private static synchronized void answer(String id, String result) {
        System.out.println(id + " " + result);
        System.out.flush();
    }
}
