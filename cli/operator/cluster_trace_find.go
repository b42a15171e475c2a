package operator

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strings"

	"github.com/google/uuid"

	"atoll.dev/client/clmclient"
	"atoll.dev/client/remote"
)

// maxCandidates is how many clusters of one name an error lists.
const maxCandidates = 20

// findTraced finds a cluster by its name, its id, its name in Azure, or its resource id there. The error lists the
// candidates when several clusters have the name.
func (l *clmConnection) findTraced(ctx context.Context, name string) (clmclient.Resource, error) {
	switch {
	case strings.HasPrefix(name, "/"):
		return l.findAzureID(ctx, name)
	case uuid.Validate(name) == nil:
		_, r, err := l.findOne(ctx, []string{"clusters", name})
		return r, err
	}
	candidates, err := l.collect(ctx, remote.SearchEqual("name", name), func(clmclient.Resource) bool { return true })
	if err != nil {
		return clmclient.Resource{}, err
	}
	if search := azureNameSearch(name); search != "" {
		ofAzure, err := l.collect(ctx, search, func(r clmclient.Resource) bool {
			return r.Name != name && strings.EqualFold(azureNameOf(r.Spec), name)
		})
		if err != nil {
			return clmclient.Resource{}, err
		}
		candidates = append(candidates, ofAzure...)
	}
	switch len(candidates) {
	case 0:
		return clmclient.Resource{}, &remote.Error{Status: http.StatusNotFound, Code: "not-found", Reason: fmt.Sprintf(
			"no cluster is named %q, neither here nor in Azure; `atoll clm list clusters` shows what there is", name)}
	case 1:
		return candidates[0], nil
	}
	return clmclient.Resource{}, ambiguousName(name, candidates)
}

// findAzureID finds a cluster by its resource id in Azure.
func (l *clmConnection) findAzureID(ctx context.Context, id string) (clmclient.Resource, error) {
	parts := strings.Split(id, "/")
	if len(parts) < 9 {
		return clmclient.Resource{}, fmt.Errorf("%s is not the resource id of a cluster", id)
	}
	found, err := l.collect(ctx, remote.SearchEqual("labels.azure-subscription", strings.ToLower(parts[2])),
		func(r clmclient.Resource) bool { return strings.EqualFold(azureIDOf(r.Spec), id) })
	if err == nil && len(found) == 0 {
		err = fmt.Errorf("no cluster has the resource id %s; `atoll clm list clusters --search "+
			"\"labels.azure='hcp'\"` shows those of Azure", id)
	}
	if err != nil {
		return clmclient.Resource{}, err
	}
	return found[0], nil
}

// collect returns the clusters of a search that match, up to one more than an error lists.
func (l *clmConnection) collect(ctx context.Context, search string, match func(clmclient.Resource) bool) (
	found []clmclient.Resource, err error) {
	for r, err := range l.All(ctx, "clusters", clmclient.ResourceQuery{Order: "created_time", Search: search}) {
		if err != nil {
			return nil, err
		}
		if match(r) {
			found = append(found, r)
		}
		if len(found) > maxCandidates {
			break
		}
	}
	return found, nil
}

// azureName matches the names that a cluster in Azure may have.
var azureName = regexp.MustCompile(`^[a-zA-Z][-a-zA-Z0-9]{0,53}$`)

// azureNameSearch returns the search for the Clusters that the front for Azure may have made for a name in Azure; ""
// for a text that is no such name. The front keeps up to 45 characters of the name, in lower case, and adds a digest.
func azureNameSearch(name string) string {
	const kept = 45
	if !azureName.MatchString(name) {
		return ""
	}
	prefix := strings.ToLower(name)
	prefix = strings.Trim(prefix[:min(len(prefix), kept)], "-")
	return remote.SearchEqual("labels.azure", "hcp") + " and name like '" + prefix + "-%'"
}

// ambiguousName returns the error for a name that several clusters have.
func ambiguousName(name string, candidates []clmclient.Resource) error {
	var list strings.Builder
	for n, r := range candidates {
		if n == maxCandidates {
			list.WriteString("\n  ... and more")
			break
		}
		fmt.Fprintf(&list, "\n  %s  account %s", r.ID, r.Tenancy["account"])
		if id := azureIDOf(r.Spec); id != "" {
			list.WriteString("  " + id)
		}
	}
	return &remote.Error{Status: http.StatusConflict, Code: "ambiguous", Reason: fmt.Sprintf(
		"several clusters are named %q; give one of these ids:%s", name, list.String())}
}

// azureIDOf returns the resource id in Azure that the spec of a Cluster names, "" when it names none.
func azureIDOf(spec json.RawMessage) string {
	var s struct {
		Properties struct {
			ID string `json:"azureResourceId"`
		} `json:"properties"`
	}
	if json.Unmarshal(spec, &s) != nil {
		return ""
	}
	return s.Properties.ID
}

// azureNameOf returns the name in Azure of a Cluster, "" when it is none of Azure.
func azureNameOf(spec json.RawMessage) string {
	id := azureIDOf(spec)
	return id[strings.LastIndex(id, "/")+1:]
}
