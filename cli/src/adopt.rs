//! `kindred adopt`: puts kindred in front of an etcd that is in use. This begins it; the steps that follow ask a router
//! ([`crate::admin::adopt`]).

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::time::SystemTime;

use anyhow::{Context, bail};
use kindred_partition_config::ids::StoreName;
use kindred_partition_config::model::{KindredConfig, StoreConfig, StoreType, UpConfig};
use kindred_partition_config::parse;
use kindred_transport::private;

use crate::admin::output;
use crate::stock_etcd::{self, StockEtcd, judge};
use crate::up;

pub mod args;

use args::Begin;

/// The name of the configuration in the data folder. `kindred up` starts with it as well.
const CONFIG: &str = "adopted.yaml";

/// Checks the etcd, and serves it until a signal arrives.
///
/// # Errors
/// When something is in the way.
pub fn run(mut args: Begin) -> anyhow::Result<()> {
    if let Some(file) = &args.up.config {
        bail!(
            "--config {}: adopt makes its own configuration; --write-config writes it to a file that you may change",
            file.display()
        );
    }
    let config = config_of(&args);
    if let Err(errors) = up::check_config(&config) {
        bail!("{} error(s){errors}", errors.len());
    }
    // A restart serves at once: the etcd may be away for a moment.
    if args.check || args.write_config.is_some() || !up::is_used(&args.up.data_dir) {
        check(&args)?;
    }
    if args.check {
        return Ok(());
    }
    let text = parse::to_yaml(&config).map_err(anyhow::Error::msg)?;
    if let Some(file) = &args.write_config {
        let shown = file.display();
        let mut made = File::create_new(file).with_context(|| shown.to_string())?;
        made.write_all(text.as_bytes()).with_context(|| shown.to_string())?;
        return output::print(&format!("written: start kindred up --config {shown}\n")).map_err(Into::into);
    }
    up::take_folder(&args.up.data_dir)?;
    let file = args.up.data_dir.join(CONFIG);
    is_of_folder(&file, &config)?;
    private::write(&file, text.as_bytes()).with_context(|| file.display().to_string())?;
    args.up.config = Some(file);
    up::run(args.up)
}

/// A folder goes on with the etcd that it has adopted, whatever a later command line says: that must not be another one.
fn is_of_folder(file: &Path, wanted: &KindredConfig) -> anyhow::Result<()> {
    let kept = match std::fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error).with_context(|| file.display().to_string()),
    };
    // What cannot be read is written anew.
    let Ok(kept) = parse::parse_config(&kept) else { return Ok(()) };
    let of = |config: &KindredConfig| {
        let store = config.stores.iter().find(|store| store.name == config.default);
        store.map(|store| (store.name.clone(), store.endpoints.clone()))
    };
    let (Some((store, was)), Some((named, is))) = (of(&kept), of(wanted)) else { return Ok(()) };
    if (&store, &was) == (&named, &is) {
        return Ok(());
    }
    let (is, was, folder) = (is.join(","), was.join(","), file.parent().unwrap_or(file).display());
    bail!(
        "--from {is}: --data-dir {folder} has adopted {was} as the store {store:?}: where that etcd is now, say by kindred edit \
         servicegroups {store}; to adopt another etcd, choose another folder"
    )
}

fn check(args: &Begin) -> anyhow::Result<()> {
    let from = args.from.join(",");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let look = runtime.block_on(async {
        // Channels belong to the runtime.
        let etcd = StockEtcd::new("--from", &args.from, &args.etcd_tls)?;
        let look = etcd.look(&args.etcd_prefix).await;
        look.map_err(|status| anyhow::anyhow!("--from {from}: {}", stock_etcd::said(&status)))
    })?;
    let findings = judge::to_adopt(&look, SystemTime::now());
    output::print(&judge::shown(&findings))?;
    if !judge::may_go_on(&findings) {
        bail!("--from {from}: it cannot be adopted as it is; nothing was changed");
    }
    Ok(())
}

/// The etcd as the only store, used by others as well.
fn config_of(args: &Begin) -> KindredConfig {
    let name = StoreName(args.store.clone());
    let flags = stock_etcd::router_flags(&args.etcd_tls);
    let router = flags.into_iter().map(|(flag, file)| (flag.to_owned(), file.display().to_string().into()));
    KindredConfig {
        etcd_prefix: args.etcd_prefix.clone(),
        stores: vec![StoreConfig {
            name: name.clone(),
            slot: None,
            endpoints: args.from.iter().map(|url| url.trim().to_owned()).collect(),
            store_type: StoreType::Etcd,
            standby: None,
            adopting: true,
        }],
        default: name,
        partitions: Vec::new(),
        up: UpConfig { router: router.collect(), ..UpConfig::default() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It went on with the old etcd, and said nothing.
    #[test]
    fn f91_a_folder_that_has_adopted_an_etcd_adopts_no_other_one() {
        #[derive(clap::Parser)]
        struct Cli {
            #[command(flatten)]
            begin: Begin,
        }
        let config = |from: &str| {
            config_of(&<Cli as clap::Parser>::parse_from(["adopt", &format!("--from={from}")]).begin)
        };
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(CONFIG);
        let old = config("http://a:2379,http://b:2379");
        is_of_folder(&file, &old).unwrap();
        std::fs::write(&file, parse::to_yaml(&old).unwrap()).unwrap();
        is_of_folder(&file, &old).unwrap();
        let refused = is_of_folder(&file, &config("http://c:2379")).unwrap_err().to_string();
        assert!(
            refused.contains("http://c:2379") && refused.contains("has adopted http://a:2379"),
            "{refused}"
        );
    }
}
