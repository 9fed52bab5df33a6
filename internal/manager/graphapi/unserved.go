package graphapi

import (
	"context"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/graphapi/model"
)

// Model serving, networks between sessions and catalogues of registries are not in this version. Their lists are empty, so that pages of
// clients open, and what would make or change one is refused with words.

// unserved refuses what this version has not, to those who are known.
func (r *resolver) unserved(ctx context.Context, what, next string) error {
	if err := authz.Authenticated(r.who(ctx)); err != nil {
		return err
	}
	return fault.Invalidf("%s in this version", what).WithReason("not-implemented").WithNext("%s", next)
}

const (
	noServing    = "there is no model serving"
	noNetworks   = "there are no networks between sessions"
	noRegistries = "there is no catalogue of registries"

	// What to do instead.
	serveByApp      = "start a session with an app and share it with berth app"
	clusterSessions = "start a session of several containers: they have a network of their own"
	allowRegistries = "name registries in a domain's allowed_docker_registries, and import images with berth image import"
)

// known answers with what is the same for everybody who is authenticated.
func known[T any](ctx context.Context, r *resolver, v T) (T, error) {
	if err := authz.Authenticated(r.who(ctx)); err != nil {
		return *new(T), err
	}
	return v, nil
}

func (q queries) Endpoint(ctx context.Context, _ string) (*model.Endpoint, error) {
	return known[*model.Endpoint](ctx, q.resolver, nil)
}

func (q queries) EndpointList(ctx context.Context, _, _ int, _, _, _, _, _, _ *string) (*model.EndpointList, error) {
	return known(ctx, q.resolver, &model.EndpointList{Items: []*model.Endpoint{}, TotalCount: new(0)})
}

func (q queries) EndpointTokenList(ctx context.Context, _, _ int, _, _, _ *string) (*model.EndpointTokenList, error) {
	return known(ctx, q.resolver, &model.EndpointTokenList{Items: []*model.EndpointToken{}, TotalCount: new(0)})
}

func (q queries) EndpointAutoScalingRuleNode(ctx context.Context, _ string) (*model.EndpointAutoScalingRuleNode, error) {
	return known[*model.EndpointAutoScalingRuleNode](ctx, q.resolver, nil)
}

func (q queries) EndpointAutoScalingRuleNodes(
	ctx context.Context, _ string, _, _ *string, _ *int, _, _ *string, _, _ *int,
) (*model.EndpointAutoScalingRuleConnection, error) {
	return known(ctx, q.resolver, &model.EndpointAutoScalingRuleConnection{PageInfo: &model.PageInfo{},
		Edges: []*model.EndpointAutoScalingRuleEdge{}, Count: new(0)})
}

func (q queries) ModelCards(ctx context.Context, _, _ *string, _ *int, _, _ *string, _, _ *int) (*model.ModelCardConnection, error) {
	return known(ctx, q.resolver, &model.ModelCardConnection{PageInfo: &model.PageInfo{}, Edges: []*model.ModelCardEdge{}, Count: new(0)})
}

func (q queries) Network(ctx context.Context, _ string) (*model.NetworkNode, error) {
	return known[*model.NetworkNode](ctx, q.resolver, nil)
}

func (q queries) Networks(ctx context.Context, _, _ *string, _ *int, _, _ *string, _, _ *int) (*model.NetworkConnection, error) {
	return known(ctx, q.resolver, &model.NetworkConnection{PageInfo: &model.PageInfo{}, Edges: []*model.NetworkEdge{}, Count: new(0)})
}

func (q queries) ContainerRegistryNodes(
	ctx context.Context, _, _ *string, _ *int, _, _ *string, _, _ *int,
) (*model.ContainerRegistryConnection, error) {
	return known(ctx, q.resolver, &model.ContainerRegistryConnection{PageInfo: &model.PageInfo{}, Edges: []*model.ContainerRegistryEdge{},
		Count: new(0)})
}

func (q queries) deployments(ctx context.Context) (*model.ModelDeploymentConnection, error) {
	return known(ctx, q.resolver, &model.ModelDeploymentConnection{PageInfo: &model.PageInfo{}, Edges: []*model.ModelDeploymentEdge{},
		Count: new(0)})
}

func (q queries) MyDeployments(
	ctx context.Context, _ *model.DeploymentFilter, _ []*model.DeploymentOrderBy, _, _ *int,
) (*model.ModelDeploymentConnection, error) {
	return q.deployments(ctx)
}

func (q queries) AdminDeployments(
	ctx context.Context, _ *model.DeploymentFilter, _ []*model.DeploymentOrderBy, _, _ *int,
) (*model.ModelDeploymentConnection, error) {
	return q.deployments(ctx)
}

func (q queries) Deployment(ctx context.Context, _ string) (*model.ModelDeployment, error) {
	return known[*model.ModelDeployment](ctx, q.resolver, nil)
}

func (q queries) DeploymentRevisionPresets(
	ctx context.Context, _ []*model.RuntimeVariantPresetOrderBy, _, _, _ *int,
) (*model.DeploymentRevisionPresetConnection, error) {
	return known(ctx, q.resolver, &model.DeploymentRevisionPresetConnection{PageInfo: &model.PageInfo{},
		Edges: []*model.DeploymentRevisionPresetEdge{}, Count: new(0)})
}

func (q queries) RuntimeVariant(ctx context.Context, _ string) (*model.RuntimeVariantNode, error) {
	return known[*model.RuntimeVariantNode](ctx, q.resolver, nil)
}

func (q queries) RuntimeVariants(
	ctx context.Context, _ *model.RuntimeVariantFilter, _ []*model.RuntimeVariantPresetOrderBy, _, _, _ *int,
) (*model.RuntimeVariantConnection, error) {
	return known(ctx, q.resolver, &model.RuntimeVariantConnection{PageInfo: &model.PageInfo{}, Edges: []*model.RuntimeVariantEdge{},
		Count: new(0)})
}

func (q queries) RuntimeVariantPresets(
	ctx context.Context, _ *model.RuntimeVariantPresetFilter, _ []*model.RuntimeVariantPresetOrderBy, _, _, _ *int,
) (*model.RuntimeVariantPresetConnection, error) {
	return known(ctx, q.resolver, &model.RuntimeVariantPresetConnection{PageInfo: &model.PageInfo{},
		Edges: []*model.RuntimeVariantPresetEdge{}, Count: new(0)})
}

func (q queries) PrometheusQueryPresets(ctx context.Context, _, _, _ *int) (*model.PrometheusQueryPresetConnection, error) {
	return known(ctx, q.resolver, &model.PrometheusQueryPresetConnection{PageInfo: &model.PageInfo{},
		Edges: []*model.PrometheusQueryPresetEdge{}, Count: new(0)})
}

func (q queries) ContainerUtilizationMetricMetadata(ctx context.Context) (*model.UtilizationMetricMetadata, error) {
	return known(ctx, q.resolver, &model.UtilizationMetricMetadata{MetricNames: []*string{}})
}

func (q queries) UserUtilizationMetric(
	ctx context.Context, user string, _ model.UserUtilizationMetricQueryInput,
) (*model.UserUtilizationMetric, error) {
	return known(ctx, q.resolver, &model.UserUtilizationMetric{UserID: &user, Metrics: []*model.UtilizationMetric{}})
}

func (m mutations) ModifyEndpoint(ctx context.Context, _ string, _ any) (*model.ModifyEndpointReply, error) {
	r, err := reply(m.unserved(ctx, noServing, serveByApp))
	if err != nil {
		return nil, err
	}
	return &model.ModifyEndpointReply{Ok: r.Ok, Msg: r.Msg}, nil
}

func (m mutations) noRule(ctx context.Context) (*model.EndpointAutoScalingRuleReply, error) {
	r, err := reply(m.unserved(ctx, noServing, serveByApp))
	if err != nil {
		return nil, err
	}
	return &model.EndpointAutoScalingRuleReply{Ok: r.Ok, Msg: r.Msg}, nil
}

func (m mutations) CreateEndpointAutoScalingRuleNode(
	ctx context.Context, _ string, _ model.AutoScalingMetricSource, _, _ string, _ model.AutoScalingMetricComparator, _, _ int, _, _ *int,
) (*model.EndpointAutoScalingRuleReply, error) {
	return m.noRule(ctx)
}

func (m mutations) ModifyEndpointAutoScalingRuleNode(ctx context.Context, _ string, _ any) (*model.EndpointAutoScalingRuleReply, error) {
	return m.noRule(ctx)
}

func (m mutations) DeleteEndpointAutoScalingRuleNode(ctx context.Context, _ string) (*model.MutationReply, error) {
	return reply(m.unserved(ctx, noServing, serveByApp))
}

func (m mutations) noNetwork(ctx context.Context) (*model.NetworkReply, error) {
	r, err := reply(m.unserved(ctx, noNetworks, clusterSessions))
	if err != nil {
		return nil, err
	}
	return &model.NetworkReply{Ok: r.Ok, Msg: r.Msg}, nil
}

func (m mutations) CreateNetwork(ctx context.Context, _, _ string, _ *string) (*model.NetworkReply, error) {
	return m.noNetwork(ctx)
}

func (m mutations) ModifyNetwork(ctx context.Context, _ string, _ any) (*model.NetworkReply, error) {
	return m.noNetwork(ctx)
}

func (m mutations) DeleteNetwork(ctx context.Context, _ string) (*model.MutationReply, error) {
	return reply(m.unserved(ctx, noNetworks, clusterSessions))
}

func (m mutations) CreateModelDeployment(ctx context.Context, _ model.CreateDeploymentInput) (*model.ModelDeploymentPayload, error) {
	return nil, m.unserved(ctx, noServing, serveByApp)
}

func (m mutations) UpdateModelDeployment(ctx context.Context, _ model.UpdateDeploymentInput) (*model.ModelDeploymentPayload, error) {
	return nil, m.unserved(ctx, noServing, serveByApp)
}

func (m mutations) DeleteModelDeployment(ctx context.Context, _ model.DeleteDeploymentInput) (*model.DeletedPayload, error) {
	return nil, m.unserved(ctx, noServing, serveByApp)
}

func (m mutations) AddModelRevision(ctx context.Context, _ model.AddRevisionInput) (*model.ModelRevisionPayload, error) {
	return nil, m.unserved(ctx, noServing, serveByApp)
}

func (m mutations) ActivateDeploymentRevision(ctx context.Context, _ model.ActivateRevisionInput) (*model.ActivateRevisionPayload, error) {
	return nil, m.unserved(ctx, noServing, serveByApp)
}

func (m mutations) CreateAccessToken(ctx context.Context, _ model.CreateAccessTokenInput) (*model.AccessTokenPayload, error) {
	return nil, m.unserved(ctx, noServing, serveByApp)
}

func (m mutations) DeleteAccessToken(ctx context.Context, _ model.DeleteAccessTokenInput) (*model.DeletedPayload, error) {
	return nil, m.unserved(ctx, noServing, serveByApp)
}

func (m mutations) CreateAutoScalingRule(ctx context.Context, _ model.CreateAutoScalingRuleInput) (*model.AutoScalingRulePayload, error) {
	return nil, m.unserved(ctx, noServing, serveByApp)
}

func (m mutations) UpdateAutoScalingRule(ctx context.Context, _ model.UpdateAutoScalingRuleInput) (*model.AutoScalingRulePayload, error) {
	return nil, m.unserved(ctx, noServing, serveByApp)
}

func (m mutations) DeleteAutoScalingRule(ctx context.Context, _ model.DeleteAutoScalingRuleInput) (*model.DeletedPayload, error) {
	return nil, m.unserved(ctx, noServing, serveByApp)
}

func (m mutations) DeployVfolderV2(ctx context.Context, _ string, _ model.DeployVFolderV2Input) (*model.DeployVFolderPayload, error) {
	return nil, m.unserved(ctx, noServing, serveByApp)
}

func (m mutations) CreateContainerRegistryNode(
	ctx context.Context, _, _, _ string, _ *bool, _, _ *string, _ *bool, _, _ *string,
) (*model.ContainerRegistryReply, error) {
	return nil, m.unserved(ctx, noRegistries, allowRegistries)
}

func (m mutations) ModifyContainerRegistryNode(
	ctx context.Context, _ string, _, _, _ *string, _ *bool, _, _ *string, _ *bool, _, _ *string,
) (*model.ContainerRegistryReply, error) {
	return nil, m.unserved(ctx, noRegistries, allowRegistries)
}

func (m mutations) DeleteContainerRegistryNode(ctx context.Context, _ string) (*model.ContainerRegistryReply, error) {
	return nil, m.unserved(ctx, noRegistries, allowRegistries)
}

func (m mutations) CreateContainerRegistryNodeV2(
	ctx context.Context, _ model.CreateContainerRegistryNodeInputV2,
) (*model.ContainerRegistryReply, error) {
	return nil, m.unserved(ctx, noRegistries, allowRegistries)
}

func (m mutations) ModifyContainerRegistryNodeV2(
	ctx context.Context, _ string, _ model.ModifyContainerRegistryNodeInputV2,
) (*model.ContainerRegistryReply, error) {
	return nil, m.unserved(ctx, noRegistries, allowRegistries)
}

func (m mutations) DeleteContainerRegistryNodeV2(ctx context.Context, _ string) (*model.ContainerRegistryReply, error) {
	return nil, m.unserved(ctx, noRegistries, allowRegistries)
}

func (m mutations) CreateContainerRegistryQuota(ctx context.Context, _ string, _ int) (*model.MutationReply, error) {
	return reply(m.unserved(ctx, noRegistries, allowRegistries))
}

func (m mutations) UpdateContainerRegistryQuota(ctx context.Context, _ string, _ int) (*model.MutationReply, error) {
	return reply(m.unserved(ctx, noRegistries, allowRegistries))
}

func (m mutations) DeleteContainerRegistryQuota(ctx context.Context, _ string) (*model.MutationReply, error) {
	return reply(m.unserved(ctx, noRegistries, allowRegistries))
}

// RescanImages is refused: agents tell which images they have, at once and unasked.
func (m mutations) RescanImages(ctx context.Context, _, _ *string) (*model.RescanImagesReply, error) {
	r, err := reply(m.unserved(ctx, "registries are not scanned",
		"berth image unknown lists what agents have; berth image import takes it in"))
	if err != nil {
		return nil, err
	}
	return &model.RescanImagesReply{Ok: r.Ok, Msg: r.Msg}, nil
}

// ModifyImage is refused: what is known of an image are its labels.
func (m mutations) ModifyImage(ctx context.Context, _ string, _ *string, _ model.ModifyImageInput) (*model.MutationReply, error) {
	return reply(m.unserved(ctx, "images are as they were built", "build the image with other labels and import it again"))
}

func (m mutations) RescanGpuAllocMaps(ctx context.Context, _ string) (*model.RescanGPUAllocMapsReply, error) {
	return nil, m.unserved(ctx, "devices are not scanned on demand", "agents tell of their devices within seconds; look at the agent again")
}
