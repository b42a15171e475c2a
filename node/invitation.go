package node

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
)

// An Invitation lets one machine of a customer join a node pool with the provider external, once. `atoll nodepool
// join-token` prints it as the input of `atoll node join --token-file -`.
type Invitation struct {
	Address    string `json:"address"`       // HOST:PORT of the router, the only address that the machine dials
	ServerName string `json:"tlsServerName"` // of the cluster's API server
	CA         string `json:"ca"`            // PEM certificates that sign the API server's certificate
	Pool       string `json:"pool"`          // the customer's name of the node pool
	Token      string `json:"token"`         // a bootstrap token of the cluster: ID.SECRET
}

// Marks of a machine that joins or has joined. Hosting (hosting/nodepool) and the machine (node/join) agree on them.
const (
	// JoinLabel of a CertificateSigningRequest marks the first request of a machine; hosting decides about it.
	JoinLabel = "atoll.dev/node-join"
	// PlaceAnnotation of a Node has a Place.
	PlaceAnnotation = "atoll.dev/place"
	// KeyAnnotation of a Node is the hash of the public key with which its machine has joined.
	KeyAnnotation = "atoll.dev/machine-key"
	// LeavingAnnotation of a Node is set by its machine: hosting drains the Node and then deletes it.
	LeavingAnnotation = "atoll.dev/leaving"

	joinGroup = "system:bootstrappers:atoll:join:"
)

// JoinGroup returns the group of the bootstrap tokens of a pool's invitations.
func JoinGroup(pool string) string { return joinGroup + pool }

// PoolOfGroup is the inverse of JoinGroup.
func PoolOfGroup(group string) (pool string, ok bool) {
	pool, ok = strings.CutPrefix(group, joinGroup)
	return pool, ok && pool != ""
}

// JoinedName returns the name of the Node of the machine that joins with a token. A token has one name, no two tokens
// of a cluster have the same, and no token of pool a has the name of a Node of pool a-b.
func JoinedName(pool, tokenID string) string { return pool + "-" + tokenID }

// Place is what hosting has decided for the Node of a machine that joins: its place in the networks of the cluster.
type Place struct {
	ProviderID  string `json:"providerID"`
	Advertised  string `json:"advertised"`
	ClusterCIDR string `json:"clusterCIDR"`
	ServiceCIDR string `json:"serviceCIDR"`
	ClusterDNS  string `json:"clusterDNS"`
	PodCIDR     string `json:"podCIDR"`
	Address     string `json:"address"`
	// CA is the PEM certificate of the CA that signs when hosting makes the Node. The invitation may be of before a
	// rotation of the CA. "" from a hosting of an earlier version.
	CA string `json:"ca,omitempty"`
}

var bootstrapToken = regexp.MustCompile(`^[a-z0-9]{6}\.[a-z0-9]{16}$`)

// TokenID returns the public part of the token.
func (i Invitation) TokenID() string {
	id, _, _ := strings.Cut(i.Token, ".")
	return id
}

// Node returns the name of the Node of the machine that joins with the invitation.
func (i Invitation) Node() string { return JoinedName(i.Pool, i.TokenID()) }

// Encode returns the text of an invitation: one word for a command line.
func (i Invitation) Encode() (string, error) {
	data, err := json.Marshal(i)
	if err != nil {
		return "", err
	}
	return base64.RawURLEncoding.EncodeToString(data), nil
}

// maxInvitation bounds the text of an invitation, in bytes.
const maxInvitation = 64 << 10

// ParseInvitation reads the text of an invitation. It refuses one in which something is missing.
func ParseInvitation(text string) (Invitation, error) {
	var i Invitation
	wrong := errors.New("this is no token of a node pool; copy the whole command that `atoll nodepool join-token` prints")
	text = strings.TrimSpace(text)
	if text == "" || len(text) > maxInvitation {
		return i, wrong
	}
	data, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil {
		return i, wrong
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	err = decoder.Decode(&i)
	if _, end := decoder.Token(); err != nil || !errors.Is(end, io.EOF) {
		return Invitation{}, wrong
	}
	var mistakes []error
	APIServer{Address: i.Address, UnnamedAddress: i.Address, ServerName: i.ServerName, CA: i.CA}.validate(
		func(member, format string, args ...any) {
			mistakes = append(mistakes, fmt.Errorf("%s: %w", member, fmt.Errorf(format, args...)))
		})
	if !bootstrapToken.MatchString(i.Token) || i.Pool == "" {
		mistakes = append(mistakes, errors.New("it has no token of a pool"))
	}
	if err := errors.Join(mistakes...); err != nil {
		return Invitation{}, fmt.Errorf("the token of a node pool: %w", err)
	}
	return i, nil
}
