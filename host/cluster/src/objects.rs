//! The objects of one kind at the API server, read as a watch reads them: of an object that is nested too deep, only
//! the metadata are read. `kube::Api` reads nothing of an answer with such an object, and logs the whole text of it.

use futures::stream::{self, Stream, StreamExt as _, TryStreamExt as _};
use kube::api::{DeleteParams, GetParams, ListParams, Patch, PatchParams, PostParams, Request};
use kube::core::{ApiResource, DynamicObject, ObjectList};
use kube::{Client, Error, Resource as _, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::cache::Whole;
use operator_host_core::object::{escaped_name, next_page};

/// The number of objects per page of a list.
const PAGE: u32 = 500;

/// The objects of one kind, in one namespace or in the whole cluster. The methods are those of `kube::Api`. A method with
/// `metadata` in its name reads only the metadata.
pub struct Objects {
    client: Client,
    request: Request,
}

type Requested = std::result::Result<hyper::Request<Vec<u8>>, kube::core::request::Error>;

#[expect(missing_docs, reason = "each method is that of kube::Api")]
impl Objects {
    pub fn new(client: Client, resource: &ApiResource, namespace: Option<&str>) -> Self {
        Self {
            client,
            request: Request::new(DynamicObject::url_path(resource, namespace)),
        }
    }

    async fn send<T: DeserializeOwned>(&self, request: Requested) -> Result<T> {
        let text = self
            .client
            .request_text(request.map_err(Error::BuildRequest)?)
            .await?;
        serde_json::from_str(&text).map_err(Error::SerdeError)
    }

    async fn one(&self, request: Requested) -> Result<DynamicObject> {
        let Whole(object) = self.send(request).await?;
        Ok(object)
    }

    async fn several(&self, request: Requested) -> Result<ObjectList<DynamicObject>> {
        let list: ObjectList<Whole> = self.send(request).await?;
        Ok(ObjectList {
            types: list.types,
            metadata: list.metadata,
            items: list.items.into_iter().map(|Whole(object)| object).collect(),
        })
    }

    pub async fn get(&self, name: &str) -> Result<DynamicObject> {
        self.one(self.request.get(&escaped_name(name), &GetParams::default()))
            .await
    }

    pub async fn list(&self, params: &ListParams) -> Result<ObjectList<DynamicObject>> {
        self.several(self.request.list(params)).await
    }

    pub async fn list_metadata(&self, params: &ListParams) -> Result<ObjectList<DynamicObject>> {
        self.several(self.request.list_metadata(params)).await
    }

    /// Reads the metadata of all objects that a list has, a page at a time. An error is the last item.
    pub fn all_metadata(&self, params: ListParams) -> impl Stream<Item = Result<DynamicObject>> + '_ {
        let first = Some(params.limit(PAGE));
        let pages = stream::try_unfold(first, async |params: Option<ListParams>| {
            let Some(mut params) = params else {
                return Ok::<_, Error>(None);
            };
            let page = self.list_metadata(&params).await?;
            params.continue_token = next_page(&page.metadata);
            let next = params.continue_token.is_some().then_some(params);
            Ok(Some((stream::iter(page.items).map(Ok), next)))
        });
        pages.try_flatten()
    }

    pub async fn create(&self, params: &PostParams, object: &DynamicObject) -> Result<DynamicObject> {
        let body = serde_json::to_vec(object).map_err(Error::SerdeError)?;
        self.one(self.request.create(params, body)).await
    }

    /// Patches an object, or a subresource of it.
    pub async fn patch<P: Serialize>(
        &self,
        name: &str,
        subresource: Option<&str>,
        params: &PatchParams,
        patch: &Patch<P>,
    ) -> Result<DynamicObject> {
        let name = escaped_name(name);
        let request = match subresource {
            Some(subresource) => self.request.patch_subresource(subresource, &name, params, patch),
            None => self.request.patch(&name, params, patch),
        };
        self.one(request).await
    }

    /// Returns the object while it waits for its grace period or finalizers, and `None` once it is deleted.
    pub async fn delete(&self, name: &str, params: &DeleteParams) -> Result<Option<DynamicObject>> {
        let object = self.one(self.request.delete(&escaped_name(name), params)).await?;
        let is_status = object
            .types
            .as_ref()
            .is_some_and(|types| types.api_version == "v1" && types.kind == "Status");
        // Some API servers answer with the deleted object.
        Ok((!is_status && operator_host_core::object::is_terminating(&object)).then_some(object))
    }
}
