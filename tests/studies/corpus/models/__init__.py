"""Twenty-four models of published packages, with random weights: what training teams deliver.

Each is the package's own code with its own interface; the few adapters turn what no package of
compiled code can take or give (windows of a data loader, tables of features) into tensors. They
need `make corpus`'s environment.
"""

from tests.studies.corpus.models.language import LANGUAGE
from tests.studies.corpus.models.model import CorpusModel
from tests.studies.corpus.models.recommenders import RECOMMENDERS
from tests.studies.corpus.models.series import SERIES
from tests.studies.corpus.models.tables import TABLES
from tests.studies.corpus.models.vision import VISION

MODELS = (*VISION, *LANGUAGE, *SERIES, *RECOMMENDERS, *TABLES)

__all__ = ["MODELS", "CorpusModel"]
