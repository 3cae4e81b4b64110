//! Errors of the admin API in Kubernetes' form: a `Status` object with a cause for each field.

use axum::extract::rejection::QueryRejection;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use kindred_partition_config::validate::FieldError;
use serde_json::{Value, json};

use crate::meta::{ChangeError, MetaError};

/// Why a request was refused or failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ApiError {
    /// The body or the query cannot be parsed.
    BadRequest(String),
    /// The object does not exist.
    NotFound(String),
    /// An object with the name exists.
    AlreadyExists(String),
    /// The object has changed since it was read, or the request contradicts what is under way.
    Conflict(String),
    /// The history that was asked for is gone.
    Expired(String),
    /// Errors by field.
    Invalid(Vec<FieldError>),
    /// A router without meta, or an older store, does not support this.
    NotImplemented(String),
    /// Meta or a store cannot be used. Nothing was changed unless the text says that this is unknown.
    Unavailable(String),
}

impl ApiError {
    fn code(&self) -> (StatusCode, &'static str) {
        match self {
            Self::BadRequest(_) => (StatusCode::BAD_REQUEST, "BadRequest"),
            Self::NotFound(_) => (StatusCode::NOT_FOUND, "NotFound"),
            Self::AlreadyExists(_) => (StatusCode::CONFLICT, "AlreadyExists"),
            Self::Conflict(_) => (StatusCode::CONFLICT, "Conflict"),
            Self::Expired(_) => (StatusCode::GONE, "Expired"),
            Self::Invalid(_) => (StatusCode::UNPROCESSABLE_ENTITY, "Invalid"),
            Self::NotImplemented(_) => (StatusCode::NOT_IMPLEMENTED, "NotImplemented"),
            Self::Unavailable(_) => (StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable"),
        }
    }

    /// The `Status` object.
    #[must_use]
    pub fn object(&self) -> Value {
        let (code, reason) = self.code();
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message(), "reason": reason, "code": code.as_u16(),
        });
        if let Self::Invalid(errors) = self {
            let causes = errors.iter().map(|error| {
                let message = format!("{}; {}", error.message, error.what_to_do);
                json!({ "reason": "FieldValueInvalid", "message": message, "field": error.path })
            });
            status["details"] = json!({ "causes": causes.collect::<Vec<_>>() });
        }
        status
    }

    fn message(&self) -> String {
        match self {
            Self::Invalid(errors) => errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"),
            Self::BadRequest(text)
            | Self::NotFound(text)
            | Self::AlreadyExists(text)
            | Self::Conflict(text)
            | Self::Expired(text)
            | Self::NotImplemented(text)
            | Self::Unavailable(text) => text.clone(),
        }
    }
}

impl From<Vec<FieldError>> for ApiError {
    fn from(errors: Vec<FieldError>) -> Self {
        Self::Invalid(errors)
    }
}

impl From<QueryRejection> for ApiError {
    fn from(rejection: QueryRejection) -> Self {
        Self::BadRequest(rejection.body_text())
    }
}

impl From<ChangeError<ApiError>> for ApiError {
    fn from(error: ChangeError<ApiError>) -> Self {
        match error {
            ChangeError::Refused(error) => error,
            ChangeError::Meta(MetaError::None) => Self::NotImplemented(MetaError::None.to_string()),
            ChangeError::Meta(MetaError::Contended) => Self::Conflict(MetaError::Contended.to_string()),
            ChangeError::Meta(error @ MetaError::Unsound(_)) => Self::Conflict(error.to_string()),
            ChangeError::Meta(error) => Self::Unavailable(error.to_string()),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        (self.code().0, axum::Json(self.object())).into_response()
    }
}
