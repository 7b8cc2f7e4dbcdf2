//! The routes.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use evenhand_policy::WeightedFairnessPolicy;
use serde_json::json;
use sqlx::PgPool;

use crate::orders::{self, NewOrder, PlaceError};

/// What every request may use. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) pool: PgPool,
    pub(crate) policy: Arc<WeightedFairnessPolicy>,
}

pub(crate) fn router(shared: Shared) -> Router {
    Router::new()
        .route("/orders", post(place))
        .route("/orders/{id}", get(find))
        .route("/healthz", get(healthz))
        .with_state(shared)
}

async fn place(State(shared): State<Shared>, Json(order): Json<NewOrder>) -> Response {
    match orders::place(&shared.pool, &shared.policy, &order).await {
        Ok(id) => (StatusCode::CREATED, Json(json!({ "id": id }))).into_response(),
        Err(error) => error.into_response(),
    }
}

async fn find(State(shared): State<Shared>, Path(id): Path<i64>) -> Response {
    match orders::find(&shared.pool, id).await {
        Ok(Some(order)) => Json(order).into_response(),
        Ok(None) => StatusCode::NOT_FOUND.into_response(),
        Err(error) => unavailable(&error),
    }
}

async fn healthz(State(shared): State<Shared>) -> Response {
    match shared.pool.acquire().await {
        Ok(_) => "ok".into_response(),
        Err(error) => unavailable(&error),
    }
}

impl IntoResponse for PlaceError {
    fn into_response(self) -> Response {
        let status = match &self {
            Self::UnknownShop | Self::UnknownItem => StatusCode::UNPROCESSABLE_ENTITY,
            Self::Quantity => StatusCode::CONFLICT,
            Self::Unavailable(error) => return unavailable(&**error),
        };
        (status, Json(json!({ "error": self.to_string() }))).into_response()
    }
}

/// The reason is for those who run the service, not for its clients.
fn unavailable(error: &(dyn core::error::Error + 'static)) -> Response {
    eprintln!("error: the database does not answer: {error}");
    StatusCode::SERVICE_UNAVAILABLE.into_response()
}
