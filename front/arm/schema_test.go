package arm

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"atoll.dev/internal/jsonvalue"
	"atoll.dev/store"
)

// TestEveryAPIVersionKeepsTheFieldsOfOthers writes random properties with one api-version, and puts back
// with each api-version what that shows: the stored properties stay.
func TestEveryAPIVersionKeepsTheFieldsOfOthers(t *testing.T) {
	for _, kind := range []store.Kind{kindCluster, kindPool, kindAuth} {
		rapid.Check(t, func(t *rapid.T) {
			fields := fieldsOf(kind)
			created := bodyReader{version: version(rapid.IntRange(0, len(versions)-1).Draw(t, "version")), isNew: true}
			stored := created.readObject("", fields, draw(t, fields), nil)
			for v := range versions {
				again := bodyReader{version: version(v)}
				after := again.readObject("", fields, version(v).visibleFields(fields, stored), stored)
				for _, p := range again.problems {
					if !slices.Contains(created.problems, p) {
						t.Fatalf("created with %s, put with %s: %v; at the creation %v", versions[created.version], versions[v],
							p, created.problems)
					}
				}
				if changed := findChange("", fields, stored, after); changed != "" {
					t.Fatalf("created with %s, put with %s: %s", versions[created.version], versions[v], changed)
				}
				for w := range versions { // what each other api-version shows stays, too
					was, is := version(w).visibleFields(fields, stored), version(w).visibleFields(fields, after)
					if changed := findChange("", fields, was, is); changed != "" {
						t.Fatalf("created with %s, put with %s, shown with %s: %s", versions[created.version], versions[v],
							versions[w], changed)
					}
				}
			}
		})
	}
}

// findChange returns the first difference between two objects with fields: a value that was lost or changed, or a new
// one that is not the default of its field. It returns "" if there is none.
func findChange(path string, fields []field, before, after map[string]any) string {
	for _, f := range fields {
		was, existed := before[f.name]
		is, exists := after[f.name]
		if inner, isObject := is.(map[string]any); isObject && len(f.members) > 0 {
			old, _ := was.(map[string]any)
			if changed := findChange(path+f.name+".", f.members, old, inner); changed != "" {
				return changed
			}
			continue
		}
		isDefault := !existed && f.fallback != nil && jsonvalue.Equal(is, f.fallback)
		isEmpty := existed && !exists && isEmptyObject(was)
		if existed != exists && !isDefault && !isEmpty || existed && exists && !jsonvalue.Equal(was, is) {
			return fmt.Sprintf("%s%s was %v (%t) and is %v (%t)", path, f.name, was, existed, is, exists)
		}
	}
	return ""
}

func isEmptyObject(value any) bool {
	object, isObject := value.(map[string]any)
	return isObject && len(object) == 0
}

// draw returns random values of fields; some are left out.
func draw(t *rapid.T, fields []field) map[string]any {
	values := map[string]any{}
	for _, f := range fields {
		if f.visibility == readOnly || !f.required && rapid.Bool().Draw(t, "without "+f.name) {
			continue
		}
		switch f.kind {
		case text:
			values[f.name] = rapid.SampledFrom([]string{"None", "FIPS", "Public", "1.36", "x"}).Draw(t, f.name)
		case integer:
			values[f.name] = json.Number(rapid.SampledFrom([]string{"0", "23", "64", "9999"}).Draw(t, f.name))
		case boolean:
			values[f.name] = rapid.Bool().Draw(t, f.name)
		case object:
			values[f.name] = draw(t, f.members)
		case list:
			values[f.name] = []any{}
			if len(f.members) > 0 {
				values[f.name] = []any{draw(t, f.members)}
			}
		case dictionary, anything:
			values[f.name] = map[string]any{"a": "b"}
		}
	}
	return values
}

// TestKeysOfTheCustomerAreRefused checks that a body which names a key or a set of keys is refused in every
// api-version, also where it leaves out the mode. Before, the region stored the resource without the key.
func TestKeysOfTheCustomerAreRefused(t *testing.T) {
	key := map[string]any{"etcd": map[string]any{"dataEncryption": map[string]any{
		"customerManaged": map[string]any{"encryptionType": "KMS"}}}}
	set := map[string]any{"platform": map[string]any{"osDisk": map[string]any{"encryptionSetId": "/subscriptions/s"}}}
	for v := range versions {
		for target, read := range map[string]func(*bodyReader){
			"etcd.dataEncryption.customerManaged": func(r *bodyReader) { r.readObject("", clusterFields, key, nil) },
			"platform.osDisk.encryptionSetId":     func(r *bodyReader) { r.readObject("", poolFields, set, nil) },
		} {
			reader := bodyReader{version: version(v), isNew: true}
			read(&reader)
			if !slices.ContainsFunc(reader.problems, func(p problem) bool { return p.target == target }) {
				t.Errorf("%s: %s is not refused: %v", versions[v], target, reader.problems)
			}
		}
	}
}

// TestAutoscalingOfAClusterIsShownAsWritten checks that a client reads the members of autoscaling that it wrote, with
// the published defaults of the others.
func TestAutoscalingOfAClusterIsShownAsWritten(t *testing.T) {
	reader := bodyReader{isNew: true}
	stored := reader.readObject("", clusterFields, map[string]any{"autoscaling": map[string]any{
		"maxNodesTotal": json.Number("9")}}, nil)
	want := map[string]any{"maxNodesTotal": json.Number("9"), "maxPodGracePeriodSeconds": json.Number("600"),
		"maxNodeProvisionTimeSeconds": json.Number("900"), "podPriorityThreshold": json.Number("-10")}
	if got := reader.version.visibleFields(clusterFields, stored)["autoscaling"]; !jsonvalue.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// TestSizesOfAzureBecomeInstanceTypes checks sizes with and without suffixes.
func TestSizesOfAzureBecomeInstanceTypes(t *testing.T) {
	for size, want := range map[string]string{"Standard_D8s_v3": "m6a.2xlarge", "Standard_E4as_v5": "r6a.xlarge",
		"Standard_F16s_v2": "c6a.4xlarge", "Standard_D96ds_v5": "m6a.24xlarge", "Standard_D3_v2": "", "Standard_NC6": "",
		"m6a.large": ""} {
		got, known := instanceTypeOf(size)
		if known != (want != "") || known && got != want {
			t.Errorf("%s: %s, %v", size, got, known)
		}
	}
}
