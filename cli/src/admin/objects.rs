//! `get`, `apply`, `delete`, `plan`.

use http::Method;
use serde_json::{Value, json};

use super::{
    args::{ApplyArgs, DeleteArgs, GetArgs, Output, PlanArgs, Resource, Run},
    client::{Client, Form, escaped},
    document::Document,
    failure::Failure,
    output::{self, Table, text},
    show::show,
    verbs,
};

pub async fn get(client: &Client, args: &GetArgs) -> Result<(), Failure> {
    let resource = match args.resource {
        None => return types(client, args).await,
        Some(Resource::Partitions) => return partitions(client, args).await,
        Some(resource) => resource,
    };
    let mut path = format!("/api/v1/{}", resource.plural());
    if let Some(name) = &args.name {
        path = format!("{path}/{}", escaped(name));
    }
    show(client, &path, args.output).await
}

/// Shows the types of objects, as `kubectl api-resources` does.
async fn types(client: &Client, args: &GetArgs) -> Result<(), Failure> {
    let value = client.get("/api/v1", Form::Objects).await?;
    if args.output != Output::Table {
        return output::print(&output::rendered(&value, args.output)?);
    }
    let mut table = Table::new(&["name", "shortnames", "kind", "verbs"]);
    let listed =
        |value: &Value| value.as_array().into_iter().flatten().map(text).collect::<Vec<_>>().join(",");
    for resource in value["resources"].as_array().into_iter().flatten() {
        table.row(vec![
            text(&resource["name"]),
            listed(&resource["shortNames"]),
            text(&resource["kind"]),
            listed(&resource["verbs"]),
        ]);
    }
    output::print(&table.render())
}

async fn partitions(client: &Client, args: &GetArgs) -> Result<(), Failure> {
    if args.name.is_some() {
        return Err(Failure::Usage("partitions have no names: leave it out".to_owned()));
    }
    let value = client.get("/api/v1/partitions", Form::Objects).await?;
    match args.output {
        Output::Table => output::print(&map(&value).render()),
        output => output::print(&output::rendered(&value, output)?),
    }
}

#[must_use]
pub fn map(value: &Value) -> Table {
    let mut table = Table::new(&["kind", "start", "end", "stores", "ring", "epoch"]);
    for partition in value["partitions"].as_array().into_iter().flatten() {
        let stores = partition["stores"].as_array().into_iter().flatten().map(text);
        let end = partition["end"].as_str().map_or("<open>".to_owned(), str::to_owned);
        table.row(vec![
            output::kind(partition),
            text(&partition["start"]),
            end,
            stores.collect::<Vec<_>>().join(","),
            text(&partition["ring"]),
            text(&partition["epoch"]),
        ]);
    }
    table
}

pub async fn apply(client: &Client, args: &ApplyArgs) -> Result<(), Failure> {
    let document = Document::read(&args.filename)?;
    verbs::change(client, "/api/v1/apply", &document.body(), &args.run).await
}

pub async fn plan(client: &Client, args: &PlanArgs) -> Result<(), Failure> {
    let document = Document::read(&args.filename)?;
    let run = Run { dry_run: true, output: args.output, ..Run::default() };
    verbs::change(client, "/api/v1/plan", &document.body(), &run).await
}

pub async fn delete(client: &Client, args: &DeleteArgs) -> Result<(), Failure> {
    match args.resource {
        Resource::Configs => {
            verbs::change(client, "/api/v1/apply", &json!({ "delete": [args.name] }), &args.run).await
        }
        Resource::Groups if args.run.dry_run => Err(Failure::Usage(
            "--dry-run: not for servicegroups; a store that owns data is never removed".to_owned(),
        )),
        Resource::Groups => {
            let path = format!("/api/v1/servicegroups/{}", escaped(&args.name));
            client.change(Method::DELETE, &path, None).await?;
            output::print(&format!("servicegroups/{} deleted\n", args.name))
        }
        Resource::Moves => Err(Failure::Usage("a move is not deleted: see kindred move abort".to_owned())),
        Resource::Partitions => {
            Err(Failure::Usage("partitions follow from datapartitionconfigs: delete those".to_owned()))
        }
    }
}
