package client

import (
	"context"
	"encoding/json"
	"net/http"

	"atoll.dev/api/platform"
	"atoll.dev/client/remote"
)

const (
	pathPolicies    = "/api/v0/authz/policies"
	pathAttachments = "/api/v0/authz/attachments"
)

// Policy is a policy with the ETag of the answer that it was read from.
type Policy struct {
	platform.Policy
	ETag string `json:"-"`
}

// CreatePolicy creates a policy from Cedar statements. The error has status 400 and names the
// position of each mistake when the statements are invalid, and 409 when another policy of the
// account has the name.
func (a *Authorization) CreatePolicy(ctx context.Context, r platform.PolicyRequest) (Policy, error) {
	return a.writePolicy(ctx, remote.Request{Method: http.MethodPost, Path: pathPolicies}, r)
}

// ReplacePolicy replaces the statements and the description of a policy. Its name cannot change. With
// an etag, the error has status 412 when the policy has changed since.
func (a *Authorization) ReplacePolicy(ctx context.Context, id string, r platform.PolicyRequest, etag string) (Policy,
	error) {
	return a.writePolicy(ctx, remote.Request{Method: http.MethodPut, Path: pathOf(pathPolicies, id),
		Header: remote.IfMatchHeader(etag)}, r)
}

func (a *Authorization) writePolicy(ctx context.Context, r remote.Request, body platform.PolicyRequest) (Policy,
	error) {
	var err error
	if r.Body, err = json.Marshal(body); err != nil {
		return Policy{}, err
	}
	return a.policy(ctx, r)
}

// policy sends a request whose answer is a policy.
func (a *Authorization) policy(ctx context.Context, r remote.Request) (Policy, error) {
	r.Query = a.query()
	doc, _, err := a.client.http.Do(ctx, r)
	if err != nil {
		return Policy{}, err
	}
	policy := Policy{ETag: doc.ETag}
	err = decode(doc, &policy.Policy)
	return policy, err
}

// Policy returns a policy by its id. The id of a managed policy is its name.
func (a *Authorization) Policy(ctx context.Context, id string) (Policy, error) {
	return a.policy(ctx, remote.Request{Method: http.MethodGet, Path: pathOf(pathPolicies, id)})
}

// Policies returns all policies of the account, the managed ones first.
func (a *Authorization) Policies(ctx context.Context) ([]platform.Policy, error) {
	return allByOffset(ctx, func(ctx context.Context, limit, offset int) ([]platform.Policy, error) {
		var list platform.PolicyList
		err := a.client.list(ctx, pathPolicies, a.query(), limit, offset, &list)
		return list.Items, err
	})
}

// FindPolicy returns the policy of an id or a name. The error has status 404 when the account has
// none.
func (a *Authorization) FindPolicy(ctx context.Context, idOrName string) (Policy, error) {
	policies, err := a.Policies(ctx)
	if err != nil {
		return Policy{}, err
	}
	for _, policy := range policies {
		if policy.PolicyID == idOrName || policy.Name == idOrName {
			return a.Policy(ctx, policy.PolicyID)
		}
	}
	return Policy{}, notFound("policy", idOrName)
}

// DeletePolicy deletes a policy by its id. The error has status 409 and the code policy-in-use while
// the policy is attached.
func (a *Authorization) DeletePolicy(ctx context.Context, id string) error {
	return a.client.sendDelete(ctx, pathOf(pathPolicies, id), a.query())
}

// Attach attaches a policy to a principal or a group. The error has status 409 when the policy is
// attached to that target.
func (a *Authorization) Attach(ctx context.Context, r platform.AttachmentRequest) (platform.Attachment, error) {
	var attachment platform.Attachment
	err := a.client.send(ctx, remote.Request{Method: http.MethodPost, Path: pathAttachments, Query: a.query()}, r,
		&attachment)
	return attachment, err
}

// AttachmentQuery selects attachments of an account. An empty member selects all.
type AttachmentQuery struct {
	PolicyID   string
	TargetType platform.AttachmentRequestTargetType
	TargetID   string // ARN of a principal, or id of a group
}

// Attachments returns all attachments that a query selects.
func (a *Authorization) Attachments(ctx context.Context, q AttachmentQuery) ([]platform.Attachment, error) {
	v := a.query()
	remote.SetNonEmpty(v, "policyId", q.PolicyID)
	remote.SetNonEmpty(v, "targetType", string(q.TargetType))
	remote.SetNonEmpty(v, "targetId", q.TargetID)
	return allByOffset(ctx, func(ctx context.Context, limit, offset int) ([]platform.Attachment, error) {
		var list platform.AttachmentList
		err := a.client.list(ctx, pathAttachments, v, limit, offset, &list)
		return list.Items, err
	})
}

// Detach deletes an attachment by its id.
func (a *Authorization) Detach(ctx context.Context, id string) error {
	return a.client.sendDelete(ctx, pathOf(pathAttachments, id), a.query())
}
