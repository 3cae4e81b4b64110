//! `kindred version`: what this program was built from, and with `--router` what a router and its stores run.

use kindred_transport::build::Build;
use serde_json::{Value, json};

use super::{
    args::{Connect, Output, VersionArgs},
    client::{Client, Form},
    context,
    failure::Failure,
    output::{self, Table, text},
};

/// Version and commit, for `kindred --version`.
pub const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("KINDRED_BUILD_COMMIT"), ")");

/// What this program was built from.
pub const BUILD: Build = Build {
    version: env!("CARGO_PKG_VERSION"),
    commit: env!("KINDRED_BUILD_COMMIT"),
    rustc: env!("KINDRED_BUILD_RUSTC"),
    target: env!("KINDRED_BUILD_TARGET"),
};

/// Prints the versions. Its own is printed even if no router answers.
///
/// # Errors
/// When a router was to be asked and does not answer.
pub async fn version(args: &VersionArgs, outer: &Connect) -> Result<(), Failure> {
    let connect = match &args.router {
        None => return printed(args.output, &json!({ "client": BUILD })),
        Some(None) => args.connect.over(outer),
        Some(Some(url)) => Connect { admin: Some(url.clone()), context: None, ..args.connect.over(outer) },
    };
    let asked = async {
        let client = Client::new(&context::address(&connect)?)?;
        of_router(&client).await
    };
    match asked.await {
        Ok(servers) => {
            let all = json!({ "client": BUILD, "router": servers["router"], "stores": servers["stores"] });
            printed(args.output, &all)
        }
        Err(failure) => {
            printed(args.output, &json!({ "client": BUILD }))?;
            Err(failure)
        }
    }
}

/// The versions that a router tells of itself and its stores.
async fn of_router(client: &Client) -> Result<Value, Failure> {
    match client.get("/api/v1/version", Form::Objects).await {
        Err(Failure::Refused(_)) => {}
        answered => return answered,
    }
    // A router of an earlier version, which tells only its stores'.
    let stores = client.get("/api/v1/stores", Form::Objects).await?;
    Ok(json!({ "router": { "version": "unknown" }, "stores": stores["stores"] }))
}

fn printed(output: Output, versions: &Value) -> Result<(), Failure> {
    if output != Output::Table {
        return output::print(&output::rendered(versions, output)?);
    }
    let mut out = format!("kindred {}\n", BUILD.version);
    for (name, value) in [("commit", BUILD.commit), ("rustc", BUILD.rustc), ("target", BUILD.target)] {
        out += &format!("{name}: {value}\n");
    }
    if versions["router"].is_object() {
        let mut table = Table::new(&["process", "name", "version", "commit", "state"]);
        let router = &versions["router"];
        let own = ["name", "version", "commit"].map(|field| text(&router[field]));
        table.row([&["router".to_owned()], &own[..], &[String::new()]].concat());
        for store in versions["stores"].as_array().into_iter().flatten() {
            let known = |field: &str| match text(&store[field]) {
                empty if empty.is_empty() => "unknown".to_owned(),
                value => value,
            };
            table.row(vec![
                text(&store["type"]),
                text(&store["name"]),
                known("version"),
                String::new(),
                text(&store["state"]),
            ]);
        }
        out += &format!("\n{}", table.render());
    }
    output::print(&out)
}
