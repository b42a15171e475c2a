package client

import (
	"context"
	"net/http"

	"atoll.dev/api/platform"
	"atoll.dev/client/remote"
)

const pathGroups = "/api/v0/authz/groups"

// CreateGroup creates a group without members. The error has status 409 when another group of the
// account has the name.
func (a *Authorization) CreateGroup(ctx context.Context, r platform.GroupRequest) (platform.Group, error) {
	var group platform.Group
	err := a.client.send(ctx, remote.Request{Method: http.MethodPost, Path: pathGroups, Query: a.query()}, r, &group)
	return group, err
}

// Groups returns all groups of the account by name.
func (a *Authorization) Groups(ctx context.Context) ([]platform.Group, error) {
	return allByOffset(ctx, func(ctx context.Context, limit, offset int) ([]platform.Group, error) {
		var list platform.GroupList
		err := a.client.list(ctx, pathGroups, a.query(), limit, offset, &list)
		return list.Items, err
	})
}

// FindGroup returns the group of an id or a name. The error has status 404 when the account has none.
func (a *Authorization) FindGroup(ctx context.Context, idOrName string) (platform.Group, error) {
	groups, err := a.Groups(ctx)
	if err != nil {
		return platform.Group{}, err
	}
	for _, group := range groups {
		if group.GroupID == idOrName || group.Name == idOrName {
			return group, nil
		}
	}
	return platform.Group{}, notFound("group", idOrName)
}

// DeleteGroup deletes a group by its id. The error has status 409 while a policy is attached to it.
func (a *Authorization) DeleteGroup(ctx context.Context, id string) error {
	return a.client.sendDelete(ctx, pathOf(pathGroups, id), a.query())
}

// Members returns the ARNs of the members of a group.
func (a *Authorization) Members(ctx context.Context, id string) ([]string, error) {
	var list platform.MemberList
	err := a.client.get(ctx, pathOf(pathGroups, id)+"/members", a.query(), &list)
	return list.Items, err
}

// UpdateMembers adds members to a group, removes others, and returns the members afterwards. To add a
// member of the group, and to remove another principal, changes nothing.
func (a *Authorization) UpdateMembers(ctx context.Context, id string, u platform.MemberUpdate) (platform.MemberList,
	error) {
	var list platform.MemberList
	err := a.client.send(ctx, remote.Request{Method: http.MethodPut, Path: pathOf(pathGroups, id) + "/members",
		Query: a.query()}, u, &list)
	return list, err
}
