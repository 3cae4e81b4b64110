//! Shows what a router answers at a path.

use super::{
    args::Output,
    client::{Client, Form},
    failure::Failure,
    output::{self, Table},
};

pub async fn show(client: &Client, path: &str, output: Output) -> Result<(), Failure> {
    if output != Output::Table {
        let value = client.get(path, Form::Objects).await?;
        return output::print(&output::rendered(&value, output)?);
    }
    let value = client.get(path, Form::Table).await?;
    match Table::of(&value) {
        // As kubectl does: scripts that read the table find nothing, and people are told.
        Some(table) if table.is_empty() => {
            let plural = path.rsplit('/').next().unwrap_or(path);
            output::print_error(&format!("No {plural} found."));
            Ok(())
        }
        Some(table) => output::print(&table.render()),
        None => Err(Failure::Refused("the router answered with no table; try -o json".to_owned())),
    }
}
