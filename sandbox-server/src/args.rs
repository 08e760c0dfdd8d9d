//! The command line of the program.

use std::ffi::OsString;
use std::path::PathBuf;

use sandhold_server::{Alias, Egress, ServerConfig};

const HELP: &str = "\
An E2B-compatible server over sandboxes of this machine.

usage: sandhold-server [OPTIONS]

  --listen ADDR:PORT      where to listen; port 0 picks one (default 127.0.0.1:3000)
  --home DIR              state directory (default $SANDHOLD_HOME, else the user's state directory)
  --api-key KEY           the only API key that is accepted (default $SANDHOLD_API_KEY, else any, on loopback only)
  --allow-host NAME       a further host name that clients may use; can be given several times
  --egress loopback|host  the network of sandboxes (default loopback: none but their own)
  --images DIR            images that templates may start from, as `docker save` writes them or in the OCI layout
  --image-alias NAME=base|IMAGE
                          what stands in for an image that is not there; NAME alone stands for all its tags, and an
                          empty side after `=` takes a default away (default base for e2bdev/base, ubuntu, debian)
  --version, --help

Set SANDHOLD_LOG to choose what is logged, such as `debug`.";

/// What the caller wants.
pub(crate) enum Wish {
    /// Run the server.
    Serve(Box<Args>),
    /// Only print this.
    Show(&'static str),
}

/// What was asked for on the command line and in the environment.
#[derive(Debug)]
pub(crate) struct Args {
    pub(crate) home: Option<PathBuf>,
    pub(crate) server: ServerConfig,
}

impl Args {
    /// Reads arguments as `--name value` or `--name=value`; `env` reads the environment.
    pub(crate) fn parse(
        args: impl IntoIterator<Item = OsString>,
        env: impl Fn(&str) -> Option<String>,
    ) -> Result<Wish, String> {
        let mut server = ServerConfig::new();
        if let Some(key) = env("SANDHOLD_API_KEY").filter(|key| !key.is_empty()) {
            server = server.with_api_key(key);
        }
        let mut home = None;
        let mut args = args.into_iter();
        while let Some(arg) = args.next() {
            let arg = text(arg)?;
            let (name, inline) = match arg.split_once('=') {
                Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
                None => (arg, None),
            };
            match name.as_str() {
                "--help" | "-h" => return Ok(Wish::Show(HELP)),
                "--version" => return Ok(Wish::Show(concat!("sandhold-server ", env!("CARGO_PKG_VERSION")))),
                "--listen" | "--home" | "--api-key" | "--allow-host" | "--egress" | "--images"
                | "--image-alias" => {}
                _ => return Err(format!("unknown argument {name:?}; see --help")),
            }
            let value = match inline {
                Some(value) => value,
                None => text(args.next().ok_or_else(|| format!("{name} needs a value; see --help"))?)?,
            };
            match name.as_str() {
                "--listen" => {
                    let address = value.parse().map_err(|_| {
                        format!("--listen {value:?} is not ADDR:PORT, such as 127.0.0.1:3000 or [::1]:0")
                    })?;
                    server = server.with_listen(address);
                }
                "--home" => {
                    let path = std::path::absolute(&value)
                        .map_err(|error| format!("--home {value:?} is no path: {error}"))?;
                    home = Some(path);
                }
                "--api-key" if value.is_empty() => return Err("--api-key is empty; give the key".to_owned()),
                "--api-key" => server = server.with_api_key(value),
                "--allow-host" => server = server.with_allowed_host(value),
                "--images" => server = server.with_images(value),
                "--image-alias" => {
                    let (name, stands_in) = value
                        .split_once('=')
                        .ok_or_else(|| format!("--image-alias {value:?} is not NAME=base or NAME=IMAGE"))?;
                    let alias = match stands_in {
                        "" => Alias::Nothing,
                        "base" => Alias::Base,
                        image => Alias::Image(image.to_owned()),
                    };
                    server = server.with_image_alias(name, alias);
                }
                _ => {
                    let egress = match value.as_str() {
                        "loopback" => Egress::Loopback,
                        "host" => Egress::Host,
                        _ => return Err(format!("--egress {value:?} is neither loopback nor host")),
                    };
                    server = server.with_egress(egress);
                }
            }
        }
        Ok(Wish::Serve(Box::new(Self { home, server })))
    }
}

fn text(argument: OsString) -> Result<String, String> {
    argument.into_string().map_err(|argument| format!("the argument {argument:?} is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str]) -> Result<Args, String> {
        match Args::parse(args.iter().map(OsString::from), |_| None)? {
            Wish::Serve(args) => Ok(*args),
            Wish::Show(text) => Err(text.to_owned()),
        }
    }

    #[test]
    fn every_option_is_read_in_both_forms() {
        let args = parse(&[
            "--listen=127.0.0.1:0",
            "--home",
            "/tmp/h",
            "--api-key=k=1",
            "--allow-host",
            "a.test",
            "--egress",
            "host",
        ])
        .unwrap();
        assert_eq!(args.server.listen, "127.0.0.1:0".parse().unwrap());
        assert_eq!(args.home, Some("/tmp/h".into()));
        assert_eq!(args.server.api_key.as_deref(), Some("k=1"));
        assert_eq!(args.server.allowed_hosts, ["a.test"]);
        assert_eq!(args.server.egress, Egress::Host);
    }

    #[test]
    fn a_bad_argument_is_named() {
        for (args, named) in [
            (&["--listen", "localhost"][..], "localhost"),
            (&["--egress", "internet"], "internet"),
            (&["--port", "1"], "--port"),
            (&["--home"], "--home"),
            (&["--image-alias", "ubuntu"], "ubuntu"),
            (&["--api-key="], "--api-key"),
        ] {
            let problem = parse(args).unwrap_err();
            assert!(problem.contains(named), "{problem}");
        }
    }
}
