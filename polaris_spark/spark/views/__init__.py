"""Views of a catalog's own data, by name."""

from __future__ import annotations

from polaris_spark.spark.views.changes import Changes
from polaris_spark.spark.views.commits import Commits
from polaris_spark.spark.views.files import FilesView
from polaris_spark.spark.views.index import IndexView
from polaris_spark.spark.views.metrics import Metrics
from polaris_spark.spark.views.namespaces import Namespaces
from polaris_spark.spark.views.nodes import Nodes
from polaris_spark.spark.views.objects import Objects
from polaris_spark.spark.views.realms import RealmsView
from polaris_spark.spark.views.references import References
from polaris_spark.spark.views.refs import Refs
from polaris_spark.spark.views.schemas import Schemas
from polaris_spark.spark.views.snapshots import Snapshots
from polaris_spark.spark.views.sql_views import SqlViews
from polaris_spark.spark.views.tables import Tables
from polaris_spark.spark.views.tasks import TasksView
from polaris_spark.spark.views.view import AnyView

_ALL: tuple[AnyView, ...] = (
    Objects(),
    References(),
    IndexView(),
    Commits(),
    Changes(),
    Namespaces(),
    Tables(),
    SqlViews(),
    Snapshots(),
    Schemas(),
    Refs(),
    FilesView(),
    Metrics(),
    RealmsView(),
    Nodes(),
    TasksView(),
)

VIEWS: dict[str, AnyView] = {view.name: view for view in _ALL}
"""Every view by name."""
