package gitops

import (
	"cmp"
	"path"
	"strings"
)

// object is a Kubernetes object as it is encoded.
type object = map[string]any

// argoNamespace is the namespace of Argo CD in each cluster.
const argoNamespace = "argocd"

// rootApplication is the one Application that is created by hand or by Terraform in a
// new cluster. It follows the branch and not git.revision, because its
// files set the revision of everything else. It removes nothing.
func (t target) rootApplication() object {
	git := t.settings.Git
	return object{
		"apiVersion": "argoproj.io/v1alpha1", "kind": "Application",
		"metadata": object{"name": "root", "namespace": argoNamespace, "labels": t.labels()},
		"spec": object{
			"project": "default",
			"source": object{"repoURL": git.Repository, "targetRevision": git.Branch,
				"path": path.Join(git.Rendered, t.dir, "apps")},
			"destination": object{"server": inCluster, "namespace": argoNamespace},
			"syncPolicy":  object{"automated": object{"prune": false, "selfHeal": true}},
		},
	}
}

// serverSideDiff makes Argo CD compare each object with the result of a dry run of the API server. Otherwise the
// defaults that the API server adds to the volume claims of a StatefulSet are a difference, and the Application is out
// of sync for ever.
const serverSideDiff = "ServerSideDiff=true"

// inCluster is the cluster that Argo CD runs in: each cluster configures itself.
const inCluster = "https://kubernetes.default.svc"

// applicationSet makes one Application of each chart of the cluster's type and of those
// that all types share. Charts and values are of one revision. A revision without charts deletes
// no Application, and a deleted Application leaves its resources in the cluster.
func (t target) applicationSet() object {
	git := t.settings.Git
	revision := cmp.Or(git.Revision, git.Branch)
	return object{
		"apiVersion": "argoproj.io/v1alpha1", "kind": "ApplicationSet",
		"metadata": object{"name": "apps", "namespace": argoNamespace, "labels": t.labels()},
		"spec": object{
			"goTemplate": true, "goTemplateOptions": []string{"missingkey=error"},
			"syncPolicy": object{"applicationsSync": "create-update", "preserveResourcesOnDeletion": true},
			"generators": []object{{"git": object{
				"repoURL": git.Repository, "revision": revision,
				"directories": []object{
					{"path": path.Join(git.Charts, t.typ) + "/*"}, {"path": path.Join(git.Charts, "shared") + "/*"},
				},
			}}},
			"template": object{
				"metadata": object{"name": "{{ .path.basename }}", "labels": t.labels(),
					"annotations": object{"argocd.argoproj.io/compare-options": serverSideDiff}},
				"spec": object{
					"project": "default",
					"sources": []object{
						{
							"repoURL": git.Repository, "targetRevision": revision, "path": "{{ .path.path }}",
							"helm": object{
								"valueFiles":   []string{"values.yaml", "$values/" + path.Join(git.Rendered, t.dir, "values.yaml")},
								"valuesObject": object{"global": t.identity()},
							},
						},
						{"repoURL": git.Repository, "targetRevision": revision, "ref": "values"},
					},
					"destination": object{"server": inCluster, "namespace": "{{ .path.basename }}"},
					"syncPolicy": object{
						"automated":   object{"prune": true, "selfHeal": true},
						"syncOptions": []string{"CreateNamespace=true", "ServerSideApply=true"},
					},
				},
			},
		},
	}
}

// identity returns the properties of the cluster that every chart gets as the value global.
func (t target) identity() object {
	g := object{"environment": t.region.Environment, "region": t.region.Name, "cluster": t.id, "cluster_type": t.typ,
		"aws_region": t.settings.AWS.Region}
	if t.region.Sector != "" {
		g["sector"] = t.region.Sector
	}
	if version := t.settings.Versions.Atoll; version != "" {
		g["version"] = version
	}
	if images := t.settings.Versions.Images; len(images) > 0 {
		g["images"] = images
	}
	if releases := t.settings.Versions.Releases; len(releases) > 0 {
		g["releases"] = releases
	}
	g["services"] = t.settings.Services
	if domain := t.settings.DNS.Domain; domain != "" {
		g["domain"] = strings.Join([]string{string(t.region.Name), domain}, ".")
	}
	return g
}

func (t target) labels() object {
	l := object{"atoll.dev/environment": t.region.Environment, "atoll.dev/region": t.region.Name,
		"atoll.dev/cluster-type": t.typ}
	if t.region.Sector != "" {
		l["atoll.dev/sector"] = t.region.Sector
	}
	return l
}
