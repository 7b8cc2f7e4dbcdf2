//! The program: `migrate`, then `serve`.

use std::env;
use std::process::ExitCode;

use evenhand_scheduler::{BoxError, os_signals};
use tokio::net::TcpListener;

const USAGE: &str = "usage: DATABASE_URL=postgres://... axum-service migrate | serve";

#[tokio::main]
async fn main() -> ExitCode {
    let command = env::args().nth(1);
    let done = match (env::var("DATABASE_URL"), command.as_deref()) {
        (Ok(url), Some("migrate")) => axum_service::migrate(&url).await,
        (Ok(url), Some("serve")) => serve(&url).await,
        _ => Err(USAGE.into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            let mut cause = error.source();
            while let Some(error) = cause {
                eprintln!("  because: {error}");
                cause = error.source();
            }
            ExitCode::FAILURE
        }
    }
}

async fn serve(url: &str) -> Result<(), BoxError> {
    // Caught from here on, so that a signal that comes while it starts is not lost.
    let signals = os_signals()?;
    let address = env::var("LISTEN").unwrap_or_else(|_| "127.0.0.1:3000".to_owned());
    let listener = TcpListener::bind(address).await?;
    println!("http://{}", listener.local_addr()?);
    let report = axum_service::serve(url, listener, signals).await?;
    println!("{} orders shipped, {} left", report.completed, report.left);
    Ok(())
}
