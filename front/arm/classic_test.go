package arm_test

import (
	"fmt"
	"strings"
	"testing"
)

func (w *world) testClassic(t *testing.T) {
	const newest, first = "2025-07-25", "2019-12-31-preview"
	path := groupIn + "/openShiftClusters/old"
	subnet := "/subscriptions/" + sub + "/resourceGroups/n/providers/Microsoft.Network/virtualNetworks/v/subnets/"
	body := fmt.Sprintf(`{"location":"atolltest","properties":{"clusterProfile":{"domain":"shop","resourceGroupId":`+
		`"/subscriptions/%[1]s/resourceGroups/managed"},"servicePrincipalProfile":{"clientId":"c","clientSecret":"s"},`+
		`"networkProfile":{"podCidr":"10.128.0.0/14","serviceCidr":"172.30.0.0/16"},"masterProfile":{"vmSize":`+
		`"Standard_D8s_v3","subnetId":"%[2]sm"},"workerProfiles":[{"name":"worker","vmSize":"Standard_D4s_v3",`+
		`"diskSizeGB":128,"subnetId":"%[2]sw","count":3}],"apiserverProfile":{"visibility":"Public"},`+
		`"ingressProfiles":[{"name":"default","visibility":"Public"}]}}`, sub, subnet)
	t.Run("a classic cluster is checked by every api-version and not created", func(t *testing.T) {
		for _, v := range []string{first, "2020-04-30", "2021-09-01-preview", "2022-04-01", "2022-09-04", "2023-04-01",
			"2023-07-01-preview", "2023-09-04", "2023-11-22", "2024-08-12-preview", newest} {
			w.do(call{method: "PUT", path: path, version: v, body: body}).want(t, 501, "NotImplemented", "no installer")
		}
		for old, c := range map[string]struct{ replaced, want string }{
			`"podCidr":"10.128.0.0/14"`: {`"podCidr":"10.128.0.0/20"`, "too small"},
			`"count":3`:                 {`"count":1`, "greater than or equal to 2"},
			`"clientId":"c",`:           {``, "properties.servicePrincipalProfile.clientId"},
			`resourceGroups/managed"`:   {`resourceGroups/shop"`, "other than that of the cluster"},
			`"name":"default"`:          {`"name":"other"`, "ingressProfiles"},
			`"serviceCidr":"172.30.0.0/16"`: {`"serviceCidr":"172.30.0.0/16","outboundType":"UserDefinedRouting"`,
				"needs a private API server"},
		} {
			w.do(call{method: "PUT", path: path, version: newest, body: strings.Replace(body, old, c.replaced, 1)}).
				want(t, 400, c.want)
		}
		w.do(call{method: "PUT", path: path, version: latest, body: body}).want(t, 400, "InvalidResourceType", newest)
		w.do(call{method: "PUT", path: path, version: "-", body: body}).want(t, 400, "'api-version'")
	})
	t.Run("what needs no installer works for classic clusters", func(t *testing.T) {
		w.do(call{method: "GET", path: path, version: newest}).want(t, 404, "ResourceNotFound")
		w.do(call{method: "GET", path: groupIn + "/openShiftClusters", version: first}).want(t, 200, `"value":[]`)
		w.do(call{method: "POST", path: path + "/listCredentials", version: first}).want(t, 404, "ResourceNotFound")
		w.do(call{method: "POST", path: path + "/listAdminCredentials", version: first}).want(t, 400,
			"InvalidResourceType")
		w.do(call{method: "POST", path: path + "/listAdminCredentials", version: newest}).want(t, 404)
		w.do(call{method: "DELETE", path: path, version: newest}).want(t, 204)
		w.do(call{method: "GET", path: located + "/openShiftVersions", version: newest}).want(t, 200,
			`"properties":{"version":"1.36.3"}`)
		w.do(call{method: "GET", path: located + "/openShiftVersions/1.36.3", version: "2022-04-01"}).want(t, 400)
	})
}
