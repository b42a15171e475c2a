package restapi

import (
	"encoding/json"
	"net/http"
	"strings"
	"sync"

	"sigs.k8s.io/yaml"

	api "atoll.dev/api/maestro"
	"atoll.dev/internal/rest"
	"atoll.dev/maestro/apierror"
)

func (h *handlers) getAPI(w http.ResponseWriter, _ *http.Request) error {
	return rest.WriteJSON(w, http.StatusOK, json.RawMessage(
		`{"id":"maestro","href":"/api/maestro","kind":"API","versions":[{"id":"v1","href":"/api/maestro/v1","kind":"","collections":null}]}`,
	))
}

func (h *handlers) getAPIVersion(w http.ResponseWriter, _ *http.Request) error {
	// The original Maestro and its clients use this old name of the collection.
	return rest.WriteJSON(w, http.StatusOK, json.RawMessage(
		`{"id":"v1","href":"/api/maestro/v1","kind":"APIVersion","collections":[{"id":"resources","href":"/api/maestro/v1/resources","kind":"ResourceList"}]}`,
	))
}

// openAPIJSON returns the OpenAPI document as JSON. The first call converts it: at the start of the program the
// conversion would take a third of the processor time of each short command.
var openAPIJSON = sync.OnceValue(func() []byte {
	doc, err := yaml.YAMLToJSON(api.OpenAPI)
	if err != nil {
		panic("maestro: the OpenAPI document: " + err.Error())
	}
	return doc
})

func (h *handlers) getOpenAPI(w http.ResponseWriter, r *http.Request) error {
	if strings.Contains(r.Header.Get("Accept"), "yaml") {
		w.Header().Set("Content-Type", "application/yaml")
		_, err := w.Write(api.OpenAPI)
		return err
	}
	return rest.WriteJSON(w, http.StatusOK, openAPIJSON())
}

func (h *handlers) listErrors(w http.ResponseWriter, _ *http.Request) error {
	list := api.ErrorList{
		Kind:  "ErrorList",
		Page:  1,
		Size:  len(apierror.Catalogue),
		Total: int64(len(apierror.Catalogue)),
	}
	for _, e := range apierror.Catalogue {
		list.Items = append(list.Items, apierror.Document(e.Code, e.Reason, ""))
	}
	return rest.WriteJSON(w, http.StatusOK, list)
}

func (h *handlers) getError(w http.ResponseWriter, r *http.Request) error {
	id := r.PathValue("id")
	for _, e := range apierror.Catalogue {
		if strings.TrimPrefix(e.Code, "maestro-") == id {
			return rest.WriteJSON(w, http.StatusOK, apierror.Document(e.Code, e.Reason, ""))
		}
	}
	return apierror.NotFound("Error", id)
}
