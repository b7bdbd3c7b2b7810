//! Tests of the guide's pages about languages: the files and the commands of each page must work exactly as they are
//! printed.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use ordain_tests::guide::{SectionCode, other_blocks, section_code};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::tools::{shell, shell_with_errors};

/// The section of each page that replaces the sample handler of a new project.
const OWN_HANDLER: &str = "Your own handler";

/// A project that the first command of a page has created.
struct Project {
    home: TempDir,
    name: &'static str,
    page: &'static str,
    /// The files of the page, and its commands after the first command.
    code: SectionCode,
}

impl Project {
    /// Creates the project of a page in an empty folder. Each file of the page must replace a file of the project.
    fn new(page: &'static str, name: &'static str) -> Result<Self> {
        let mut code = section_code(page, OWN_HANDLER)?;
        ensure!(!code.commands.is_empty(), "{page} has no commands");
        let home = tempfile::tempdir()?;
        shell(home.path(), &code.commands.remove(0)).with_context(|| page)?;
        let project = Self { home, name, page, code };
        for (name, _) in &project.code.files {
            ensure!(project.path(name).exists(), "{page}: the project has no file {name}");
        }
        Ok(project)
    }

    fn folder(&self) -> PathBuf {
        self.home.path().join(self.name)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder().join(name)
    }

    fn write(&self, name: &str, text: &str) -> Result<()> {
        Ok(fs::write(self.path(name), text)?)
    }

    /// Writes the files of the page, and runs its commands: the commands that test and build the handler, which must
    /// print `tested`, and then the commands that run the handler. Returns the output of the run.
    fn follow(&self, tested: &str) -> Result<String> {
        for (name, text) in &self.code.files {
            self.write(name, text)?;
        }
        let [build, run] = &self.code.commands[..] else {
            panic!("{}: {:?}", self.page, self.code.commands)
        };
        let output = shell_with_errors(&self.folder(), build).with_context(|| self.page)?;
        ensure!(output.contains(tested), "{}: {tested:?} is not in\n{output}", self.page);
        let printed = shell(&self.folder(), run).with_context(|| self.page)?;
        ensure!(printed.contains("ordain.toml is valid"), "{}: {printed}", self.page);
        Ok(printed)
    }
}

/// Returns the data of the messages with the key `anna`.
fn data_of_anna(printed: &str) -> Vec<Value> {
    let messages = printed.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    messages
        .filter(|message| message["subject"] == "anna")
        .map(|message| message["data"].clone())
        .collect()
}

#[test]
fn page_about_javascript_works() -> Result<()> {
    visits_are_counted(&Project::new("javascript.md", "visits")?.follow("pass 1")?);
    Ok(())
}

#[test]
fn page_about_python_works() -> Result<()> {
    balances_are_right(&Project::new("python.md", "account")?.follow("Ran 1 test")?)
}

#[test]
fn page_about_go_works() -> Result<()> {
    let project = Project::new("go.md", "account")?;
    balances_are_right(&project.follow("ok  \thandlers/account/handler")?)
}

#[test]
fn page_about_c_works() -> Result<()> {
    visits_are_counted(&Project::new("c.md", "visits")?.follow("a visit is counted")?);
    Ok(())
}

fn balances_are_right(printed: &str) -> Result<()> {
    let balances = [500, 200].map(|cents| json!({ "balance_cents": cents }));
    assert_eq!(data_of_anna(printed), balances, "{printed}");
    ensure!(printed.contains("the balance would be -1 cents"), "{printed}");
    Ok(())
}

fn visits_are_counted(printed: &str) {
    assert_eq!(data_of_anna(printed), [json!(["/", 1]), json!(["/cart", 2])], "{printed}");
}

/// The handler that the page shows for events with different data, after the page's first handler.
#[test]
fn decoding_on_the_page_about_python_works() -> Result<()> {
    let page = "python.md";
    let [decoding] = &other_blocks(page, OWN_HANDLER, "python")?[..] else {
        panic!("the page has other blocks")
    };
    let project = Project::new(page, "account")?;
    let (name, first) = project.code.files.first().context("the page has no handler")?;
    project.write(
        name,
        &format!("{first}\n\nfrom ordain import delete\n\n{decoding}    return put(Account(change.amount_cents))\n"),
    )?;
    let test = "from handler import Account, handle\nfrom ordain.testing import Runner\n\
                run = Runner(handle)\nrun.event('moved', {'amount_cents': 5})\n\
                print(run.state, run.event('account.closed').ends_key)\n";
    project.write("src/check.py", test)?;
    let run = "PYTHONPATH=vendor/ordain-sdk python3 src/check.py";
    assert_eq!(shell(&project.folder(), run)?, "Account(balance_cents=5) True\n");
    Ok(())
}

/// The statements that the page shows for messages with other properties, and for events with different data.
#[test]
fn statements_on_the_page_about_go_compile() -> Result<()> {
    let [messages, decoding] = &other_blocks("go.md", OWN_HANDLER, "go")?[..] else {
        panic!("the page has other blocks")
    };
    let decoding = decoding.replace("\t…\n", "\t}\n\treturn nil, ordain.Reject(\"unknown\")\n}\n");
    let program = format!(
        "package main\n\nimport \"ordain\"\n\ntype Account struct{{}}\ntype Renamed struct{{}}\n\
         func rename(ordain.Event[Renamed], *Account) (*ordain.Outcome[Account], error) {{ return nil, nil }}\n\
         func invoiced(invoice Account, pdf []byte, customer string) (*ordain.Outcome[Account], error) {{\n{messages}}}\n\
         {decoding}\nfunc init() {{ ordain.Handle(handle) }}\nfunc main() {{}}\n"
    );
    let project = Project::new("go.md", "account")?;
    fs::remove_file(project.path("handler/handler_test.go"))?;
    project.write("handler/handler.go", &program)?;
    shell(&project.folder(), "go vet ./...")?;
    Ok(())
}

/// The statements that the page shows for reading and writing JSON.
#[test]
fn json_on_the_page_about_c_works() -> Result<()> {
    let [reading, writing] = &other_blocks("c.md", OWN_HANDLER, "c")?[..] else {
        panic!("the page has other blocks")
    };
    let project = Project::new("c.md", "visits")?;
    let program = format!(
        "#include \"ordain_testing.h\"\n#include <stdio.h>\n\
         ORDAIN_HANDLER(event, state) {{\n{reading}\
         const uint64_t cents[] = {{total, (uint64_t)limit, name.len, state != NULL}};\nconst size_t count = 4;\n\
         {writing}return ORDAIN_OK;\n}}\n\
         int main(void) {{\n\
         ordain_runner *runner = ordain_runner_new();\n\
         const char *data = \"{{\\\"name\\\":\\\"anna\\\",\\\"items\\\":[{{\\\"cents\\\":2}},{{\\\"cents\\\":3}}]}}\";\n\
         const ordain_outcome *outcome = ordain_runner_event(runner, \"paid\", data);\n\
         puts(outcome->messages[0].data.ptr);\nordain_runner_free(runner);\n}}\n"
    );
    project.write("statements.c", &program)?;
    let makefile = "include vendor/ordain-sdk/ordain.mk\n\
                    run:\n\t@$(CC) $(ORDAIN_TEST_FLAGS) -Werror statements.c $(ORDAIN_SOURCES) -o run && ./run\n";
    project.write("Makefile", makefile)?;
    let printed = shell(&project.folder(), "make --silent run")?;
    assert_eq!(printed, "{\"order\":\"key\",\"cents\":[5,100,4,0]}\n");
    Ok(())
}
