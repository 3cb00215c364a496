import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.Arrays;
import java.util.Deque;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedDeque;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import org.redisson.Redisson;
import org.redisson.api.RCountDownLatch;
import org.redisson.api.RFencedLock;
import org.redisson.api.RLock;
import org.redisson.api.RPermitExpirableSemaphore;
import org.redisson.api.RSemaphore;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/**
 * A Redisson client that carries out the commands of its standard input, one per line, and prints a line for each:
 * {@code <id> <thread> <verb> <kind> <name> [milliseconds]} is answered by {@code <id> <result>}.
 *
 * <p>A lock belongs to a thread, so each {@code <thread>} named is one of its own.
 */
public final class Harness {
    private static final Map<String, ExecutorService> THREADS = new ConcurrentHashMap<>();

    private static final Deque<String> PERMITS = new ConcurrentLinkedDeque<>();

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
            answer(words[0], String.valueOf(done(words[2], words[3], words[4], milliseconds)));
        } catch (Throwable error) {
            answer(words[0], "error " + error);
        }
    }

    private static Object done(String verb, String kind, String name, long milliseconds) throws Exception {
        switch (kind) {
            case "semaphore":
                return done(verb, redisson.getPermitExpirableSemaphore(name), milliseconds);
            case "plain-semaphore":
                return done(verb, redisson.getSemaphore(name), milliseconds);
            case "latch":
                return done(verb, redisson.getCountDownLatch(name), milliseconds);
            default:
                return done(verb, lock(kind, name), milliseconds);
        }
    }

    private static RLock lock(String kind, String name) {
        switch (kind) {
            case "fenced":
                return redisson.getFencedLock(name);
            case "fair":
                return redisson.getFairLock(name);
            case "read":
                return redisson.getReadWriteLock(name).readLock();
            case "write":
                return redisson.getReadWriteLock(name).writeLock();
            case "spin":
                return redisson.getSpinLock(name);
            case "multi": // names with commas between them, in the order in which they are to be taken
                return redisson.getMultiLock(
                        Arrays.stream(name.split(",")).map(redisson::getLock).toArray(RLock[]::new));
            default:
                return redisson.getLock(name);
        }
    }

    /** Permits are known by an id, kept here: {@code unlock} gives back the one that was taken last. */
    private static Object done(String verb, RPermitExpirableSemaphore semaphore, long milliseconds)
            throws InterruptedException {
        switch (verb) {
            case "permits": // as many as the last number says, unless set already
                return semaphore.trySetPermits((int) milliseconds);
            case "try":
                return taken(semaphore.tryAcquire(0, milliseconds, TimeUnit.MILLISECONDS));
            case "wait":
                return taken(semaphore.tryAcquire(60_000, milliseconds, TimeUnit.MILLISECONDS));
            case "endless": // a permit without a lease
                return taken(semaphore.tryAcquire());
            case "unlock":
                semaphore.release(PERMITS.pop());
                return "done";
            case "left":
                return semaphore.availablePermits();
            default:
                throw new IllegalArgumentException(verb);
        }
    }

    /** Permits without an identity and without an end. */
    private static Object done(String verb, RSemaphore semaphore, long milliseconds) throws InterruptedException {
        switch (verb) {
            case "permits":
                return semaphore.trySetPermits((int) milliseconds);
            case "try":
                return semaphore.tryAcquire();
            case "wait":
                return semaphore.tryAcquire(Duration.ofMillis(60_000));
            case "unlock":
                semaphore.release();
                return "done";
            case "left":
                return semaphore.availablePermits();
            default:
                throw new IllegalArgumentException(verb);
        }
    }

    private static Object done(String verb, RCountDownLatch latch, long milliseconds) throws InterruptedException {
        switch (verb) {
            case "count": // set it, unless set already
                return latch.trySetCount(milliseconds);
            case "down":
                latch.countDown();
                return "done";
            case "left":
                return latch.getCount();
            default:
                throw new IllegalArgumentException(verb);
        }
    }

    private static boolean taken(String permit) {
        if (permit != null) {
            PERMITS.push(permit);
        }
        return permit != null;
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
