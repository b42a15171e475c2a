// Package pki provides a region's keys and certificates: the certificate
// authority and its one-time join tokens ([CA]), the service that signs
// certificate requests ([Server]), and what every other process uses to have
// an identity ([Identity]). Everything is ECDSA P-256.
//
// One process, `atoll pki`, opens the CA's directory and serves [Server.Handler]
// on a TLS port of its own. Every other process calls [OpenIdentity] once: it
// makes its key where it is used, enrols by a join token, and from then on
// renews by the certificate that it has. A certificate's common name is the
// whole identity ([Name]): a consumer's name for an agent, system:<service>
// for one of ours. The signer sets it, whatever the request says. Tokens are
// files beside the CA, so that a supervisor or a CLI on the same machine makes
// one without any network API.
//
// Services import pki for [Identity] and [PeerName]. Only cli, which composes
// `atoll pki`, and the supervisor in region may open a [CA]; a service that
// imports CA or Server has taken a key that is not its own.
package pki
