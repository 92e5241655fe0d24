//! Measures the embedded store: `cargo run --release -p store --example bench -- [SECONDS]`.

#![expect(clippy::print_stdout, reason = "figures go to standard output")]

use std::io::Write;
use std::process::Command;
use std::time::Duration;

use store::bench::{Bench, Figure, echo, run};

#[tokio::main]
async fn main() -> store::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [role, url] = &arguments[..]
        && role == "echo"
    {
        let say = |line: &str| writeln!(std::io::stdout(), "{line}");
        return echo(url, say).await;
    }
    let seconds = arguments.first().and_then(|text| text.parse().ok());
    let directory = std::env::temp_dir().join(format!("store-bench-{}", std::process::id()));
    let url = format!("lmdb:{}", directory.join("store").display());
    let bench = Bench {
        url: url.clone(),
        bare: Some(directory.join("bare")),
        duration: Duration::from_secs_f64(seconds.unwrap_or(3.0)),
        second_process: std::env::current_exe().ok().map(|program| {
            let mut command = Command::new(program);
            command.args(["echo", &url]);
            command
        }),
    };
    let result = run(bench, &mut print).await;
    // Whatever was measured, the rows are of no use.
    let _ = std::fs::remove_dir_all(directory);
    result
}

fn print(figure: Figure) {
    let Figure {
        case,
        metric,
        value,
        unit,
    } = figure;
    println!("{case:<22} {metric:<18} {value:>12.3} {unit}");
}
