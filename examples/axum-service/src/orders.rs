//! Orders in the database: the order, its run and the stock change together or not at all.

use evenhand_policy::{TenantId, WeightedFairnessPolicy};
use evenhand_scheduler::{BoxError, Job as _};
use evenhand_store_postgres::PostgresStore;
use serde::{Deserialize, Serialize};
use sqlx::PgPool;

use crate::shipping::ShipOrder;

/// An order as a shop sends it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewOrder {
    pub(crate) shop: String,
    pub(crate) item: String,
    pub(crate) quantity: i32,
}

/// An order as it is on record.
#[derive(Debug, Serialize, sqlx::FromRow)]
pub(crate) struct Order {
    id: i64,
    shop: String,
    item: String,
    quantity: i32,
    state: String,
}

/// Why an order was not placed. Nothing of it stays.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PlaceError {
    #[error("no such shop")]
    UnknownShop,
    #[error("no such item")]
    UnknownItem,
    #[error("the quantity is not positive, or more than is in stock")]
    Quantity,
    #[error("the database refused the order")]
    Unavailable(#[source] BoxError),
}

impl From<sqlx::Error> for PlaceError {
    fn from(error: sqlx::Error) -> Self {
        match error.as_database_error() {
            Some(refusal) if refusal.is_foreign_key_violation() => Self::UnknownItem,
            Some(refusal) if refusal.is_check_violation() => Self::Quantity,
            _ => Self::Unavailable(error.into()),
        }
    }
}

/// Places an order, and has it shipped.
pub(crate) async fn place(
    pool: &PgPool,
    policy: &WeightedFairnessPolicy,
    order: &NewOrder,
) -> Result<i64, PlaceError> {
    // The queue takes runs of any tenant; one that the policy does not know would wait for ever.
    let shop = TenantId::try_from(order.shop.as_str()).ok();
    let shop = shop
        .filter(|shop| policy.contains(shop))
        .ok_or(PlaceError::UnknownShop)?;
    let mut transaction = pool.begin().await?;
    let id: i64 = sqlx::query_scalar(include_str!("../sql/place.sql"))
        .bind(&order.shop)
        .bind(&order.item)
        .bind(order.quantity)
        .fetch_one(&mut *transaction)
        .await?;
    let run = ShipOrder { order: id }.new_run(shop);
    let run = run.map_err(|error| PlaceError::Unavailable(error.into()))?;
    PostgresStore::enqueue_in(&mut transaction, &run)
        .await
        .map_err(|error| PlaceError::Unavailable(error.into()))?;
    // Last, because it locks the item's row, which other orders wait for. If there is not enough, the order and its run
    // are gone with the transaction.
    sqlx::query(include_str!("../sql/take_stock.sql"))
        .bind(&order.item)
        .bind(order.quantity)
        .execute(&mut *transaction)
        .await?;
    transaction.commit().await?;
    Ok(id)
}

/// The order with this id.
pub(crate) async fn find(pool: &PgPool, id: i64) -> Result<Option<Order>, sqlx::Error> {
    sqlx::query_as(include_str!("../sql/find.sql"))
        .bind(id)
        .fetch_optional(pool)
        .await
}
