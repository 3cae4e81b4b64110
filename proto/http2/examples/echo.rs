//! An echo server over TCP, without TLS: `cargo run -p kindred-http2 --example echo [ADDRESS]`.

use kindred_http2::Limits;

#[path = "../tests/it/echo.rs"]
mod echo;

#[tokio::main(flavor = "current_thread")]
#[expect(clippy::print_stdout, reason = "its user wants to know where it listens")]
async fn main() -> std::io::Result<()> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:0".to_owned());
    let listener = tokio::net::TcpListener::bind(address).await?;
    println!("{}", listener.local_addr()?);
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        tokio::spawn(echo::serve(stream, Limits::default()));
    }
}
