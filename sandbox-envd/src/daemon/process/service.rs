//! `process.Process` over the table.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use connectrpc::{
    ConnectError, Encodable, InboundStream, RequestContext, Response, ServiceRequest, ServiceResult,
    ServiceStream,
};
use futures_core::Stream as FuturesStream;
use rustix::process::Signal as Number;
use tokio::time::Instant;

use crate::daemon::auth;
use crate::daemon::keepalive::{self, KeepAlive};
use crate::daemon::process::reply::{Follow, Reply};
use crate::daemon::process::running::{End, InputError, Process as Running};
use crate::daemon::process::signal::by_number;
use crate::daemon::process::spawn::{Command, SpawnError, Stdio};
use crate::daemon::process::stream::Stream;
use crate::daemon::process::supervise::Deadline;
use crate::daemon::process::{Selector, Started};
use crate::daemon::state::{ChildUser, State};
use crate::messages::process::__buffa::oneof::process_input::Input;
use crate::messages::process::__buffa::oneof::process_selector::Selector as Selected;
use crate::messages::process::__buffa::oneof::stream_input_request::Event;
use crate::messages::process::{
    CloseStdinRequest, CloseStdinResponse, ConnectRequest, ConnectResponse, ListRequest, ListResponse, PTY,
    Process, ProcessConfig, ProcessInfo, ProcessInput, ProcessSelector, SendInputRequest, SendInputResponse,
    SendSignalRequest, SendSignalResponse, Signal, StartRequest, StartResponse, StreamInputRequest,
    StreamInputResponse, UpdateRequest, UpdateResponse,
};

/// Between `SIGTERM` and `SIGKILL` when a client names no grace.
const DEFAULT_GRACE: Duration = Duration::from_secs(5);

/// How long the end of a killed process is waited for: one that the kernel holds may take any time.
const KILLED: Duration = Duration::from_secs(1);

/// What a child gets if the daemon itself has no `PATH`: the default of Debian's login.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

#[derive(Clone)]
pub(crate) struct Service {
    pub(crate) state: Arc<State>,
}

impl Service {
    fn find(&self, selector: Option<&ProcessSelector>) -> Result<Arc<Running>, ConnectError> {
        let selector = selector_of(selector)?;
        self.state.processes.find(&selector).ok_or_else(|| missing(&selector))
    }

    /// Finds a process that has not ended.
    fn find_running(&self, selector: Option<&ProcessSelector>) -> Result<Arc<Running>, ConnectError> {
        let process = self.find(selector)?;
        if process.end().is_some() {
            return Err(missing(&selector_of(selector)?));
        }
        Ok(process)
    }

    fn user(&self, ctx: &RequestContext) -> Result<ChildUser, ConnectError> {
        let named = auth::basic_user(ctx.headers());
        let default = self.state.session(|session| session.default_user.clone());
        match self.state.users.resolve(named.as_deref(), &default) {
            Ok(Some(user)) => Ok(user),
            Ok(None) => {
                let name = named.unwrap_or(default);
                Err(ConnectError::unauthenticated(format!("invalid username: '{name}'")))
            }
            Err(error) => Err(ConnectError::internal(format!("the users cannot be read: {error}"))),
        }
    }

    /// Lays out the child: directories as section "path rules", variables from the least to the most specific.
    fn command(
        &self,
        config: &ProcessConfig,
        user: ChildUser,
        stdio: Stdio,
    ) -> Result<Command, ConnectError> {
        let (session_envs, workdir) =
            self.state.session(|session| (session.envs.clone(), session.default_workdir.clone()));
        let cwd = directory(config.cwd.as_deref(), &user, workdir)?;
        let path = std::env::var("PATH").unwrap_or_else(|_| DEFAULT_PATH.into());
        let home = user.home.to_string_lossy().into_owned();
        let mut env: Vec<(String, String)> = Vec::new();
        let base =
            [("PATH", path), ("HOME", home), ("USER", user.name.clone()), ("LOGNAME", user.name.clone())];
        let base = base.into_iter().map(|(name, value)| (name.to_owned(), value));
        let own = config.envs.iter().map(|(name, value)| (name.clone(), value.clone()));
        for (name, value) in base.chain(session_envs).chain(own) {
            match env.iter_mut().find(|(known, _)| *known == name) {
                Some((_, earlier)) => *earlier = value,
                None => env.push((name, value)),
            }
        }
        Ok(Command {
            program: config.cmd.clone(),
            args: config.args.clone(),
            env,
            cwd,
            user,
            mode: self.state.config.user_mode,
            setup: self.state.config.child_setup.clone(),
            stdio,
        })
    }

    async fn launch(&self, ctx: &RequestContext, request: StartRequest) -> Result<Started, ConnectError> {
        let config = request.process.as_option().cloned().unwrap_or_default();
        let stdio = match request.pty.as_option() {
            Some(pty) => {
                let (cols, rows) = window(pty)?;
                Stdio::Terminal { cols, rows }
            }
            // Clients from before the field existed always get a pipe.
            None => Stdio::Pipes { stdin: request.stdin.unwrap_or(true) },
        };
        let command = self.command(&config, self.user(ctx)?, stdio)?;
        let deadlines = [
            ctx.deadline().map(|at| Deadline::Kill(Instant::from_std(at))),
            request.deadline_ms.map(|milliseconds| {
                let grace = request.grace_ms.map_or(DEFAULT_GRACE, Duration::from_millis);
                Deadline::Terminate(Instant::now() + Duration::from_millis(milliseconds), grace)
            }),
        ];
        let retain = request.retain.as_option().map(|retain| retain.max_bytes);
        let started = self
            .state
            .processes
            .start(command, config, request.tag, retain, deadlines.into_iter().flatten())
            .await;
        started.map_err(refusal)
    }
}

impl Process for Service {
    async fn list<'a>(
        &'a self,
        _ctx: RequestContext,
        request: ServiceRequest<'_, ListRequest>,
    ) -> ServiceResult<impl Encodable<ListResponse> + Send + use<'a>> {
        let listed = self.state.processes.list(request.include_ended);
        Response::ok(ListResponse { processes: listed.iter().map(|process| info(process)).collect() })
    }

    async fn connect(
        &self,
        ctx: RequestContext,
        request: ServiceRequest<'_, ConnectRequest>,
    ) -> ServiceResult<ServiceStream<impl Encodable<ConnectResponse> + Send + use<>>> {
        let request = request.to_owned_message();
        let process = self.find(request.process.as_option())?;
        let subscription = process
            .subscribe(request.replay.as_option())
            .map_err(|error| ConnectError::internal(format!("retained output cannot be read: {error}")))?;
        let json = speaks_json(&ctx);
        Ok(Response::stream(pinged(&ctx, Follow::new(process, subscription, json, false))))
    }

    async fn start(
        &self,
        ctx: RequestContext,
        request: ServiceRequest<'_, StartRequest>,
    ) -> ServiceResult<ServiceStream<impl Encodable<StartResponse> + Send + use<>>> {
        let Started { process, subscription } = self.launch(&ctx, request.to_owned_message()).await?;
        let (json, deadline) = (speaks_json(&ctx), ctx.deadline().is_some());
        Ok(Response::stream(pinged(&ctx, Follow::new(process, subscription, json, deadline))))
    }

    async fn update<'a>(
        &'a self,
        _ctx: RequestContext,
        request: ServiceRequest<'_, UpdateRequest>,
    ) -> ServiceResult<impl Encodable<UpdateResponse> + Send + use<'a>> {
        let request = request.to_owned_message();
        let process = self.find_running(request.process.as_option())?;
        if let Some(pty) = request.pty.as_option() {
            let (cols, rows) = window(pty)?;
            process
                .resize(cols, rows)
                .map_err(|error| ConnectError::internal(format!("error resizing tty: {error}")))?;
        }
        Response::ok(UpdateResponse::default())
    }

    async fn stream_input<'a>(
        &'a self,
        _ctx: RequestContext,
        mut requests: InboundStream<StreamInputRequest>,
    ) -> ServiceResult<impl Encodable<StreamInputResponse> + Send + use<'a>> {
        let mut process = None;
        while let Some(request) = std::future::poll_fn(|cx| requests.as_mut().poll_next(cx)).await {
            match (request?.to_owned_message().event, &process) {
                (Some(Event::Start(start)), None) => {
                    process = Some(self.find_running(start.process.as_option())?);
                }
                (Some(Event::Data(data)), Some(process)) => feed(process, data.input.as_option()).await?,
                (Some(Event::Start(_)), Some(_)) => {
                    return Err(ConnectError::invalid_argument("start was sent twice"));
                }
                (Some(Event::Data(_)), None) => {
                    return Err(ConnectError::invalid_argument("the first message must be start"));
                }
                (Some(Event::Keepalive(_)) | None, _) => {}
            }
        }
        Response::ok(StreamInputResponse::default())
    }

    async fn send_input<'a>(
        &'a self,
        _ctx: RequestContext,
        request: ServiceRequest<'_, SendInputRequest>,
    ) -> ServiceResult<impl Encodable<SendInputResponse> + Send + use<'a>> {
        let request = request.to_owned_message();
        let process = self.find_running(request.process.as_option())?;
        feed(&process, request.input.as_option()).await?;
        Response::ok(SendInputResponse::default())
    }

    async fn send_signal<'a>(
        &'a self,
        _ctx: RequestContext,
        request: ServiceRequest<'_, SendSignalRequest>,
    ) -> ServiceResult<impl Encodable<SendSignalResponse> + Send + use<'a>> {
        let request = request.to_owned_message();
        let signal = number(&request)?;
        let process = self.find(request.process.as_option())?;
        let sent = if request.tree.unwrap_or(false) {
            process.signal_tree(signal).await.map(|count| count > 0)
        } else {
            let sent = self.state.processes.signal(&process, signal);
            if signal == Number::KILL && matches!(sent, Ok(true)) {
                // Whoever looks for it after the answer is not to find it.
                let _ = tokio::time::timeout(KILLED, process.wait_collected()).await;
            }
            sent
        };
        match sent {
            Ok(true) => Response::ok(SendSignalResponse::default()),
            Ok(false) => Err(missing(&selector_of(request.process.as_option())?)),
            Err(error) => Err(ConnectError::internal(format!("error sending signal: {error}"))),
        }
    }

    async fn close_stdin<'a>(
        &'a self,
        _ctx: RequestContext,
        request: ServiceRequest<'_, CloseStdinRequest>,
    ) -> ServiceResult<impl Encodable<CloseStdinResponse> + Send + use<'a>> {
        let request = request.to_owned_message();
        let process = self.find_running(request.process.as_option())?;
        process
            .close_input()
            .await
            .map_err(|error| ConnectError::unknown(format!("error closing stdin: {error}")))?;
        Response::ok(CloseStdinResponse::default())
    }
}

fn pinged(
    ctx: &RequestContext,
    follow: Follow,
) -> impl FuturesStream<Item = Result<Reply, ConnectError>> + Send + use<> {
    KeepAlive::new(follow, keepalive::interval(ctx.headers()), || Ok(Reply::KeepAlive))
}

fn speaks_json(ctx: &RequestContext) -> bool {
    let content_type = ctx.headers().get(::http::header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    content_type.is_none_or(|value| value.contains("json"))
}

fn selector_of(selector: Option<&ProcessSelector>) -> Result<Selector, ConnectError> {
    match selector.and_then(|selector| selector.selector.clone()) {
        Some(Selected::Pid(pid)) => Ok(Selector::Pid(pid)),
        Some(Selected::Tag(tag)) => Ok(Selector::Tag(tag)),
        None => Err(ConnectError::invalid_argument("the process is named neither by pid nor by tag")),
    }
}

fn missing(selector: &Selector) -> ConnectError {
    ConnectError::not_found(match selector {
        Selector::Pid(pid) => format!("process with pid {pid} not found"),
        Selector::Tag(tag) => format!("process with tag {tag} not found"),
    })
}

fn refusal(error: SpawnError) -> ConnectError {
    let text = error.to_string();
    match error {
        SpawnError::Invalid(_)
        | SpawnError::MissingCwd(_)
        | SpawnError::Cwd { .. }
        | SpawnError::NotInPath { .. }
        | SpawnError::Exec { .. } => ConnectError::invalid_argument(text),
        SpawnError::Identity { .. } => ConnectError::permission_denied(text),
        SpawnError::Prepare(_) => ConnectError::internal(text),
    }
}

fn window(pty: &PTY) -> Result<(u16, u16), ConnectError> {
    let size = pty.size.as_option().cloned().unwrap_or_default();
    let fit = |name: &str, value: u32| {
        u16::try_from(value)
            .map_err(|_| ConnectError::invalid_argument(format!("pty {name} {value} is above 65535")))
    };
    Ok((fit("cols", size.cols)?, fit("rows", size.rows)?))
}

/// Returns where a command runs: `~` and relative paths start at the user's home.
fn directory(
    asked: Option<&str>,
    user: &ChildUser,
    default: Option<PathBuf>,
) -> Result<PathBuf, ConnectError> {
    let Some(asked) = asked.filter(|path| !path.is_empty()) else {
        let home_or_root = || if user.home.is_dir() { user.home.clone() } else { PathBuf::from("/") };
        return Ok(default.unwrap_or_else(home_or_root));
    };
    match asked.strip_prefix('~') {
        None => Ok(user.home.join(asked)),
        Some("") => Ok(user.home.clone()),
        Some(rest) => match rest.strip_prefix('/') {
            Some(rest) => Ok(user.home.join(rest.trim_start_matches('/'))),
            None => Err(ConnectError::invalid_argument(format!("cwd '{asked}' is another user's home"))),
        },
    }
}

fn number(request: &SendSignalRequest) -> Result<Number, ConnectError> {
    if let Some(number) = request.signal_number {
        return by_number(number)
            .ok_or_else(|| ConnectError::invalid_argument(format!("there is no signal {number}")));
    }
    match request.signal.as_known() {
        Some(Signal::SIGNAL_SIGKILL) => Ok(Number::KILL),
        Some(Signal::SIGNAL_SIGTERM) => Ok(Number::TERM),
        _ => Err(ConnectError::unimplemented(format!("invalid signal: {:?}", request.signal))),
    }
}

async fn feed(process: &Running, input: Option<&ProcessInput>) -> Result<(), ConnectError> {
    let (what, result) = match input.and_then(|input| input.input.as_ref()) {
        Some(Input::Stdin(bytes)) => ("stdin", process.write(false, bytes).await),
        Some(Input::Pty(bytes)) => ("tty", process.write(true, bytes).await),
        None => return Err(ConnectError::unimplemented("invalid input type: none")),
    };
    result.map_err(|error: InputError| ConnectError::internal(format!("error writing to {what}: {error}")))
}

fn info(process: &Running) -> ProcessInfo {
    let exit = process.end().map(|end| match end {
        End::Known(end) => end,
        End::Unknown => crate::messages::process::process_event::EndEvent {
            exit_code: -1,
            status: "unknown".into(),
            error: Some("how the process ended was not recorded".into()),
            ..Default::default()
        },
    });
    ProcessInfo {
        config: buffa::MessageField::some(process.config()),
        pid: process.pid,
        tag: process.tag.clone(),
        exit: exit.map_or_else(buffa::MessageField::none, buffa::MessageField::some),
        stdout_end: process.written(if process.is_terminal { Stream::Pty } else { Stream::Stdout }),
        stderr_end: process.written(Stream::Stderr),
    }
}
