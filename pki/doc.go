// Package pki provides a region's keys and certificates: the certificate
// authority and its one-time join tokens ([CA]), the service that signs
// certificate requests ([Server]), and the certificate that every other process
// obtains and renews ([Identity]). All keys are ECDSA P-256.
//
// One process, `atoll pki`, opens the CA's directory and serves [Server.Handler]
// on a TLS port of its own. Every other process calls [OpenIdentity] once: it
// makes its own key, enrols with a join token, and from then on renews with its
// present certificate. A certificate's common name is the whole identity
// ([Name]): a consumer's name for an agent, system:<service> for one of the
// region's services. The signer sets it and ignores the rest of the request.
// The root of the CA signs an issuing CA for each [Role], and these sign the
// certificates. A name that the issuing CA of another role has signed proves
// nothing. The root's key may be elsewhere ([CA.TakeRootKey], [CA.Issue]). The
// root of a region that an earlier atoll made signs everything itself.
// Tokens are files beside the CA, so that a supervisor or a CLI on the same
// machine makes one without a network API.
//
// Services import pki for [Identity] and [PeerName]. Only cli, which composes
// `atoll pki`, and the supervisor in local may open a [CA]; a service that
// imports CA or Server has access to the CA's key, which it must not have.
package pki
