import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.util.ArrayList;
import java.util.List;

/** A way to the server whose connections can be cut. */
final class Cut implements AutoCloseable {
    private final ServerSocket listener = new ServerSocket(0, 50, InetAddress.getLoopbackAddress());
    private final List<Socket> open = new ArrayList<>();

    Cut() throws IOException {
        thread(this::accept);
    }

    String url() {
        return "http://" + listener.getInetAddress().getHostAddress() + ":" + listener.getLocalPort();
    }

    /** Ends all connections. New ones are served. */
    synchronized void cut() throws IOException {
        for (Socket socket : open) {
            socket.close();
        }
        open.clear();
    }

    @Override
    public void close() throws IOException {
        listener.close();
        cut();
    }

    private void accept() throws IOException {
        int colon = Cases.ADDRESS.lastIndexOf(':');
        while (true) {
            Socket client = listener.accept();
            Socket server = new Socket(Cases.ADDRESS.substring(0, colon), Integer.parseInt(Cases.ADDRESS.substring(colon + 1)));
            synchronized (this) {
                open.add(client);
                open.add(server);
            }
            thread(() -> copy(client, server));
            thread(() -> copy(server, client));
        }
    }

    private static void copy(Socket from, Socket to) throws IOException {
        try (from; to) {
            InputStream in = from.getInputStream();
            OutputStream out = to.getOutputStream();
            byte[] buffer = new byte[16384];
            for (int length = in.read(buffer); length >= 0; length = in.read(buffer)) {
                out.write(buffer, 0, length);
            }
        }
    }

    private interface Work {
        void run() throws IOException;
    }

    private static void thread(Work work) {
        Thread thread = new Thread(() -> {
            try {
                work.run();
            } catch (IOException cut) {
                // A connection that was cut is what this is for.
            }
        });
        thread.setDaemon(true);
        thread.start();
    }
}
