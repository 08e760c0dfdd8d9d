//! The `filesystem.Filesystem` service.

use std::sync::Arc;

use connectrpc::{
    ConnectError, Encodable, RequestContext, Response, Router, ServiceRequest, ServiceResult, ServiceStream,
};
use futures_util::stream;

use crate::daemon::auth;
use crate::daemon::fs::actor::Actor;
use crate::daemon::fs::{entry, ops};
use crate::daemon::keepalive::{self, KeepAlive};
use crate::daemon::state::State;
use crate::daemon::watch::WatchOptions;
use crate::messages::filesystem::watch_dir_response::Event;
use crate::messages::filesystem::{
    CreateWatcherRequest, CreateWatcherResponse, Filesystem, GetWatcherEventsRequest,
    GetWatcherEventsResponse, ListDirRequest, ListDirResponse, MakeDirRequest, MakeDirResponse, MoveRequest,
    MoveResponse, RemoveRequest, RemoveResponse, RemoveWatcherRequest, RemoveWatcherResponse, StatRequest,
    StatResponse, WatchDirRequest, WatchDirResponse,
};

/// Adds the service to a router.
pub(crate) fn register(state: &Arc<State>, router: Router) -> Router {
    router.add_service(Arc::new(FilesystemService { state: Arc::clone(state) }))
}

struct FilesystemService {
    state: Arc<State>,
}

impl FilesystemService {
    /// Runs `work` on a blocking thread, for the user of the call.
    async fn run<T: Send + 'static>(
        &self,
        context: &RequestContext,
        work: impl FnOnce(&Actor) -> Result<T, ConnectError> + Send + 'static,
    ) -> Result<T, ConnectError> {
        let state = Arc::clone(&self.state);
        let user = auth::basic_user(context.headers());
        let done = tokio::task::spawn_blocking(move || {
            let actor = Actor::named(&state, user.as_deref())
                .map_err(|name| ConnectError::unauthenticated(format!("unknown user {name:?}")))?;
            work(&actor)
        });
        done.await
            .map_err(|error| ConnectError::internal(format!("the operation was interrupted: {error}")))?
    }

    async fn watch_options(
        &self,
        context: &RequestContext,
        request: CreateWatcherRequest,
    ) -> Result<WatchOptions, ConnectError> {
        // Weak: a watcher lives in the state, which it must not keep alive.
        let state = Arc::downgrade(&self.state);
        let user = auth::basic_user(context.headers());
        self.run(context, move |actor| {
            let describe = move |path: &std::path::Path| {
                let actor = Actor::named(&state.upgrade()?, user.as_deref()).ok()?;
                entry::describe(path, &actor).ok()
            };
            Ok(WatchOptions {
                root: ops::resolve(actor, &request.path)?,
                recursive: request.recursive,
                allow_network_mounts: request.allow_network_mounts,
                describe: if request.include_entry { Some(Box::new(describe)) } else { None },
            })
        })
        .await
    }
}

#[expect(refining_impl_trait, reason = "the answers are plain messages; only the router sees these types")]
impl Filesystem for FilesystemService {
    async fn stat(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, StatRequest>,
    ) -> ServiceResult<StatResponse> {
        let path = request.path.to_owned();
        let entry = self.run(&context, move |actor| ops::stat(actor, &path)).await?;
        Response::ok(StatResponse { entry: entry.into() })
    }

    async fn make_dir(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, MakeDirRequest>,
    ) -> ServiceResult<MakeDirResponse> {
        let path = request.path.to_owned();
        let entry = self.run(&context, move |actor| ops::make_dir(actor, &path)).await?;
        Response::ok(MakeDirResponse { entry: entry.into() })
    }

    async fn r#move(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, MoveRequest>,
    ) -> ServiceResult<MoveResponse> {
        let (from, to) = (request.source.to_owned(), request.destination.to_owned());
        let entry = self.run(&context, move |actor| ops::rename(actor, &from, &to)).await?;
        Response::ok(MoveResponse { entry: entry.into() })
    }

    async fn list_dir(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, ListDirRequest>,
    ) -> ServiceResult<ListDirResponse> {
        let (path, depth) = (request.path.to_owned(), request.depth);
        let entries = self.run(&context, move |actor| ops::list(actor, &path, depth)).await?;
        Response::ok(ListDirResponse { entries })
    }

    async fn remove(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, RemoveRequest>,
    ) -> ServiceResult<RemoveResponse> {
        let path = request.path.to_owned();
        self.run(&context, move |actor| ops::remove(actor, &path)).await?;
        Response::ok(RemoveResponse::default())
    }

    async fn watch_dir(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, WatchDirRequest>,
    ) -> ServiceResult<ServiceStream<impl Encodable<WatchDirResponse> + Send + use<>>> {
        let request = CreateWatcherRequest {
            path: request.path.to_owned(),
            recursive: request.recursive,
            include_entry: request.include_entry,
            allow_network_mounts: request.allow_network_mounts,
        };
        let options = self.watch_options(&context, request).await?;
        let watch = self.state.watchers.watch(options).await?;
        let first = Some(Event::Start(Box::default()));
        let events = stream::unfold((first, watch), |(first, watch)| async move {
            let event = match first {
                Some(start) => start,
                None => Event::Filesystem(Box::new(watch.next().await)),
            };
            Some((Ok(answer(event)), (None, watch)))
        });
        let ping = || Ok(answer(Event::Keepalive(Box::default())));
        Response::stream_ok(KeepAlive::new(events, keepalive::interval(context.headers()), ping))
    }

    async fn create_watcher(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, CreateWatcherRequest>,
    ) -> ServiceResult<CreateWatcherResponse> {
        let options = self.watch_options(&context, request.to_owned_message()).await?;
        let watcher_id = self.state.watchers.create(options).await?;
        Response::ok(CreateWatcherResponse { watcher_id })
    }

    async fn get_watcher_events(
        &self,
        _context: RequestContext,
        request: ServiceRequest<'_, GetWatcherEventsRequest>,
    ) -> ServiceResult<GetWatcherEventsResponse> {
        let events = self.state.watchers.events(request.watcher_id).await?;
        Response::ok(GetWatcherEventsResponse { events })
    }

    async fn remove_watcher(
        &self,
        _context: RequestContext,
        request: ServiceRequest<'_, RemoveWatcherRequest>,
    ) -> ServiceResult<RemoveWatcherResponse> {
        self.state.watchers.remove(request.watcher_id)?;
        Response::ok(RemoveWatcherResponse::default())
    }
}

fn answer(event: Event) -> WatchDirResponse {
    WatchDirResponse { event: Some(event) }
}
