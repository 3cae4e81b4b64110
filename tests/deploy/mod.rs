//! The chart and the kustomizations of `deploy/`: what they render is what Kubernetes, cert-manager, the Prometheus operator and
//! kindred's own programs accept, and a cluster runs that is started as the chart says.
//!
//! | module | what it has or proves |
//! | --- | --- |
//! | [`render`] | renders the chart and the kustomizations |
//! | [`chart`] | command lines, configuration, addresses and refusals of the chart |
//! | [`kustomize`] | the kustomizations are what the chart renders |
//! | [`server`] | a real kube-apiserver takes every object, strictly, and as a restricted pod |
//! | [`files`] | the scripts beside them: certificates, and the files of the image |
//! | [`pods`], [`run`] | the pods of the chart as processes of this machine: they serve, and are updated one by one |

mod chart;
pub mod files;
mod kustomize;
mod pods;
mod render;
mod run;
mod server;
