package rosa

import (
	"errors"
	"net/http"
	"strings"

	"atoll.dev/access"
	"atoll.dev/access/policy"
	"atoll.dev/api/platform"
	"atoll.dev/internal/rest"
)

const maxPolicyName, maxDescription = 128, 1024

// checkName refuses the name and the description of a policy or a group.
func checkName(name, description string) error {
	switch {
	case name == "" || len(name) > maxPolicyName || strings.TrimSpace(name) != name:
		return rest.Errorf(http.StatusBadRequest, codeMissingName,
			"name has 1 to %d bytes, without blanks at its ends", maxPolicyName)
	case len(description) > maxDescription:
		return rest.Errorf(http.StatusBadRequest, rest.CodeInvalid, "description has more than %d bytes", maxDescription)
	}
	return nil
}

func toPolicy(d access.PolicyDocument) platform.Policy {
	return platform.Policy{Kind: "Policy", PolicyID: d.ID, Name: d.Name, Description: d.Description, Policy: d.Text,
		CreatedAt: &d.CreatedAt, CreatedBy: d.CreatedBy}
}

func toManagedPolicy(m policy.Managed) platform.Policy {
	return platform.Policy{Kind: "Policy", PolicyID: m.Name, Name: m.Name, Description: m.Description, Policy: m.Text,
		Managed: true}
}

// readPolicy reads the body of a request for a policy. A custom policy cannot have the name of a
// managed one.
func (a *accountRequest) readPolicy() (access.PolicyDocument, error) {
	var body platform.PolicyRequest
	if err := a.readJSON(&body); err != nil {
		return access.PolicyDocument{}, err
	}
	if err := checkName(body.Name, body.Description); err != nil {
		return access.PolicyDocument{}, err
	}
	if _, isManaged := policy.FindManaged(body.Name); isManaged {
		return access.PolicyDocument{}, rest.Errorf(http.StatusConflict, codeExists,
			"a managed policy is named %s already", body.Name)
	}
	if err := policy.Check(body.Policy); err != nil {
		return access.PolicyDocument{}, rest.Errorf(http.StatusBadRequest, codeInvalidPolicy, "%s",
			strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	return access.PolicyDocument{Document: access.Document{Account: a.account}, Name: body.Name,
		Description: body.Description, Text: body.Policy}, nil
}

func (f *front) createPolicy(a *accountRequest) error {
	p, err := a.readPolicy()
	if err != nil {
		return err
	}
	made, err := a.directory.PutPolicy(a.r.Context(), p)
	if err != nil {
		return err
	}
	return a.created(made.ID, made.Version, toPolicy(made))
}

// listPolicies shows the managed policies before those of the account.
func (f *front) listPolicies(a *accountRequest) error {
	w, err := a.readWindow()
	if err != nil {
		return err
	}
	items := convertAll(policy.ManagedPolicies(), toManagedPolicy)
	managed := len(items)
	items = items[min(w.Offset, managed):min(w.Offset+w.Limit, managed)]
	custom := access.Window{Limit: w.Limit - len(items), Offset: max(0, w.Offset-managed)}
	found, total, err := a.directory.Policies(a.r.Context(), a.account, custom)
	if err != nil {
		return err
	}
	return a.write(http.StatusOK, 0, platform.PolicyList{Kind: "PolicyList",
		Items: append(items, convertAll(found, toPolicy)...), Total: total + managed, Limit: w.Limit, Offset: w.Offset})
}

func (f *front) getPolicy(a *accountRequest) error {
	if m, isManaged := policy.FindManaged(a.r.PathValue("id")); isManaged {
		return a.write(http.StatusOK, 0, toManagedPolicy(m))
	}
	found, err := a.directory.Policy(a.r.Context(), a.account, a.r.PathValue("id"))
	if err != nil {
		return err
	}
	return a.write(http.StatusOK, found.Version, toPolicy(found))
}

// refuseManaged refuses a change of a managed policy.
func (a *accountRequest) refuseManaged() error {
	if m, isManaged := policy.FindManaged(a.r.PathValue("id")); isManaged {
		return rest.Errorf(http.StatusConflict, codePolicyInUse, "%s is a managed policy, which cannot be changed", m.Name)
	}
	return nil
}

func (f *front) updatePolicy(a *accountRequest) error {
	version, err := a.readVersion()
	if err != nil {
		return err
	}
	p, err := a.readPolicy()
	if err = errors.Join(a.refuseManaged(), err); err != nil {
		return err
	}
	p.ID, p.Version = a.r.PathValue("id"), version
	stored, err := a.directory.PutPolicy(a.r.Context(), p)
	if err != nil {
		return err
	}
	return a.write(http.StatusOK, stored.Version, toPolicy(stored))
}

func (f *front) deletePolicy(a *accountRequest) error {
	version, err := a.readVersion()
	if err = errors.Join(a.refuseManaged(), err); err != nil {
		return err
	}
	return a.noContent(a.directory.DeletePolicy(a.r.Context(), a.account, a.r.PathValue("id"), version))
}

func toAttachment(d access.AttachmentDocument) platform.Attachment {
	return platform.Attachment{Kind: "Attachment", AttachmentID: d.ID, PolicyID: d.PolicyID,
		TargetType: platform.AttachmentTargetType(d.Type), TargetID: d.Target, CreatedAt: d.CreatedAt,
		CreatedBy: d.CreatedBy}
}

func (f *front) createAttachment(a *accountRequest) error {
	var body platform.AttachmentRequest
	if err := a.readJSON(&body); err != nil {
		return err
	}
	kind := access.TargetType(body.TargetType)
	if kind != access.TargetUser && kind != access.TargetGroup {
		return rest.Errorf(http.StatusBadRequest, rest.CodeInvalid, "targetType is neither user nor group")
	}
	made, err := a.directory.Attach(a.r.Context(), access.AttachmentDocument{
		Document: access.Document{Account: a.account}, PolicyID: body.PolicyID, Type: kind, Target: body.TargetID,
	})
	if err != nil {
		return err
	}
	return a.created(made.ID, made.Version, toAttachment(made))
}

func (f *front) listAttachments(a *accountRequest) error {
	w, err := a.readWindow()
	if err != nil {
		return err
	}
	q := a.r.URL.Query()
	w.Policy, w.Target, w.Type = q.Get("policyId"), q.Get("targetId"), access.TargetType(q.Get("targetType"))
	found, total, err := a.directory.Attachments(a.r.Context(), a.account, w)
	if err != nil {
		return err
	}
	return a.write(http.StatusOK, 0, platform.AttachmentList{Kind: "AttachmentList",
		Items: convertAll(found, toAttachment), Total: total, Limit: w.Limit, Offset: w.Offset})
}

func (f *front) deleteAttachment(a *accountRequest) error {
	return a.noContent(a.directory.Detach(a.r.Context(), a.account, a.r.PathValue("id")))
}
